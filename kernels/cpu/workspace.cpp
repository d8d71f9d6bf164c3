// Grown when more is asked for, never shrunk: after the first pass of its size no call allocates.
#include "workspace.h"

#include <memory>
#include <new>

namespace {

constexpr std::align_val_t kAlignment{64};

struct Free {
  void operator()(void* p) const { ::operator delete(p, kAlignment); }
};

struct Block {
  std::unique_ptr<void, Free> memory;
  size_t bytes = 0;
};

thread_local Block blocks[3];

}  // namespace

void* tdm::workspace(Use use, size_t bytes) {
  Block& block = blocks[static_cast<int>(use)];
  if (block.bytes < bytes) {
    block.memory.reset();
    block.memory.reset(::operator new(bytes, kAlignment));
    block.bytes = bytes;
  }
  return block.memory.get();
}
