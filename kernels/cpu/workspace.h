// Memory of one thread that lives from call to call: for what a kernel prepares for itself.
#pragma once
#include <cstddef>

namespace tdm {

enum class Use { kRow, kBytes, kTiles };

// At least `bytes` bytes at a 64-byte boundary, the thread's own for this use; what they held before may be lost.
void* workspace(Use use, size_t bytes);

}  // namespace tdm
