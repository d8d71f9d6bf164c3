// The team: threads that walk a program's launches together, one barrier per launch that needs one.
// Threads spin for a moment and then sleep, so an idle team costs nothing.
#include <atomic>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "tandem.h"

namespace {

constexpr int kSpins = 4000;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins for a moment, then sleeps until `word` is no longer `seen`: a peer may need this core.
inline void await_change(const std::atomic<uint32_t>& word, uint32_t seen) {
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) != seen) return;
    pause();
  }
  word.wait(seen, std::memory_order_acquire);
}

// Subnormal numbers count as zero while it lives: bf16 products know no others, so no kernel does.
class FlushSubnormals {
 public:
  FlushSubnormals() : before_(get()) { set(before_ | kFlush); }
  ~FlushSubnormals() { set(before_); }

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kFlush = 0x8040;  // MXCSR: flush to zero, denormals are zero
  static uint64_t get() { return __builtin_ia32_stmxcsr(); }
  static void set(uint64_t word) { __builtin_ia32_ldmxcsr(static_cast<uint32_t>(word)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = 1 << 24;  // FPCR.FZ
  static uint64_t get() {
    uint64_t word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set(uint64_t word) { asm volatile("msr fpcr, %0" ::"r"(word)); }
#else
  static constexpr uint64_t kFlush = 0;
  static uint64_t get() { return 0; }
  static void set(uint64_t) {}
#endif
  const uint64_t before_;
};

struct Team {
  explicit Team(int threads) : threads(threads) {}
  ~Team() {
    start(nullptr, 0);
    for (auto& worker : workers) worker.join();
  }

  // False when the system gives no more threads or memory; the destructor ends those that came.
  bool gather() {
    try {
      for (int i = 1; i < threads; ++i) workers.emplace_back([this, i] { serve(i); });
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }

  void start(const tdm::Launch* next, int64_t length) {
    launches = next;
    count = length;
    job.fetch_add(1, std::memory_order_release);
    job.notify_all();
  }

  void barrier() {
    const uint32_t turn = turns.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
      arrived.store(0, std::memory_order_relaxed);
      turns.fetch_add(1, std::memory_order_release);
      turns.notify_all();
    } else {
      await_change(turns, turn);
    }
  }

  void walk(int thread) {
    const FlushSubnormals flush;
    for (int64_t i = 0; i < count; ++i) {
      if (launches[i].wait) barrier();
      launches[i].kernel(launches[i].args, {thread, threads});
    }
    barrier();
  }

  void serve(int thread) {
    for (uint32_t seen = 0;; ++seen) {
      await_change(job, seen);
      if (launches == nullptr) return;
      walk(thread);
    }
  }

  const int threads;
  const tdm::Launch* launches = nullptr;
  int64_t count = 0;
  alignas(64) std::atomic<uint32_t> job{0};
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<uint32_t> turns{0};
  std::vector<std::thread> workers;
};

}  // namespace

extern "C" {

int64_t tdm_abi() { return 1; }

// Null when so many threads cannot be had.
void* tdm_team_new(int64_t threads) {
  auto team = std::make_unique<Team>(static_cast<int>(threads));
  return team->gather() ? team.release() : nullptr;
}

void tdm_team_free(void* team) { delete static_cast<Team*>(team); }

// Runs `count` launches to the end. One caller at a time per team.
void tdm_run(void* team, const tdm::Launch* launches, int64_t count) {
  if (count == 0) return;  // a null list would tell the threads to end
  auto* t = static_cast<Team*>(team);
  t->start(launches, count);
  t->walk(0);
}

}  // extern "C"
