// A progress bar on stderr, only where that is a terminal: logs and pipes stay clean.
#ifndef HOTSET_BASE_PROGRESS_BAR_H_
#define HOTSET_BASE_PROGRESS_BAR_H_

#include <string>

namespace hotset {

// Shows the bar from the first update() until it is destroyed, which wipes it out.
// Thread-compatible.
class ProgressBar {
 public:
  explicit ProgressBar(std::string what);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `part` of the work is done, from 0 to 1.
  void update(double part);

 private:
  std::string what_;
  bool is_terminal_;
  int shown_percent_ = -1;
};

}  // namespace hotset

#endif  // HOTSET_BASE_PROGRESS_BAR_H_
