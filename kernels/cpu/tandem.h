// The face between programs and kernels: arguments are 8-byte words, one launch is one call per thread.
#pragma once
#include <cstdint>

namespace tdm {

// Which part of the team this call is. A kernel splits its tasks over `threads`; no split moves a bit.
struct Part {
  int thread;
  int threads;
};

struct Range {
  int64_t begin, end;
};

// The contiguous share of `tasks` that falls to this part.
inline Range share(int64_t tasks, Part part) {
  return {tasks * part.thread / part.threads, tasks * (part.thread + 1) / part.threads};
}

using Kernel = void (*)(const void* args, Part part);

// One line of a program after relocation; `wait` asks for a barrier before it.
struct Launch {
  Kernel kernel;
  const void* args;
  uint64_t wait;
};

}  // namespace tdm

// Declares the kernel NAME over the struct ARGS, whose members are 8 bytes each. SIGNATURE names them in order:
// "<in" and ">out" and "!both" are pointers, "=n" a whole number, "~x" a real (double).
// The build reads it from the library (`tdm_sig_NAME`), so it is written once.
#define TDM_KERNEL(NAME, ARGS, SIGNATURE)                                          \
  extern "C" const char tdm_sig_##NAME[] = SIGNATURE;                              \
  static void NAME##_body(const ARGS& a, tdm::Part part);                          \
  extern "C" void tdm_##NAME(const void* args, tdm::Part part) {                   \
    NAME##_body(*static_cast<const ARGS*>(args), part);                            \
  }                                                                                \
  static void NAME##_body(const ARGS& a, tdm::Part part)
