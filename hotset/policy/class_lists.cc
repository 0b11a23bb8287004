#include "hotset/policy/class_lists.h"

namespace hotset::policy {

ClassLists::ClassLists(int32_t n_slots) : n_slots_(n_slots), links_(n_slots + kClasses) {
  for (int32_t list = 0; list < kClasses; list++) {
    link(head(list)).previous = link(head(list)).next = head(list);
  }
}

void ClassLists::append(ExpertIndex expert, int32_t slot, int32_t list) {
  const int32_t end = head(list);
  const int32_t last = link(end).previous;
  link(slot) = {.previous = last, .next = end, .expert = expert};
  link(last).next = slot;
  link(end).previous = slot;
}

void ClassLists::remove(int32_t slot) {
  const Link& removed = link(slot);
  link(removed.previous).next = removed.next;
  link(removed.next).previous = removed.previous;
}

}  // namespace hotset::policy
