#include "hotset/device/virtual_timeline.h"

#include <algorithm>
#include <utility>

namespace hotset::device {

void VirtualTimeline::host_reaches(double us) { host_us_ = std::max(host_us_, us); }

VirtualTimeline::Span VirtualTimeline::enqueue(QueueId queue, double duration_us) {
  double& free_us = free_us_[std::to_underlying(queue)];
  const double start_us = std::max(free_us, host_us_);
  free_us = start_us + duration_us;
  return {start_us, duration_us};
}

double VirtualTimeline::record(QueueId queue) { return std::max(idle_us(queue), host_us_); }

void VirtualTimeline::queue_waits(QueueId queue, double event_us) {
  double& free_us = free_us_[std::to_underlying(queue)];
  free_us = std::max(free_us, event_us);
}

}  // namespace hotset::device
