// How fast this machine reads memory: threads of 8 streams each over a large buffer, with software prefetch.
// Arguments: threads, megabytes, repeats. Each line on stdin is answered by a line: the best repeat's GB/s (1e9 bytes).
#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kStreams = 8, kLine = 64, kSpan = 36864, kAhead = 1024;  // bytes; a stream walks spans of its own

typedef uint64_t Line __attribute__((vector_size(kLine)));

Line total;  // written, so that no read can be left out

void read_all(const char* start, size_t bytes, Line* sum) {
  Line sums[kStreams] = {};
  for (size_t base = 0; base + kStreams * kSpan <= bytes; base += kStreams * kSpan)
    for (size_t i = 0; i < kSpan; i += kLine)
      for (size_t s = 0; s < kStreams; ++s) {
        const char* line = start + base + s * kSpan + i;
        __builtin_prefetch(line + kAhead);
        sums[s] ^= *reinterpret_cast<const Line*>(line);
      }
  for (const Line& found : sums) *sum ^= found;
}

double pass(const char* buffer, size_t bytes, size_t num_threads) {
  const size_t share = bytes / num_threads / (kStreams * kSpan) * (kStreams * kSpan);
  std::vector<std::thread> threads;
  std::vector<Line> sums(num_threads * 2);  // two lines apart, so that no two threads share one
  const auto begin = std::chrono::steady_clock::now();
  for (size_t t = 0; t < num_threads; ++t) threads.emplace_back(read_all, buffer + t * share, share, &sums[2 * t]);
  for (auto& thread : threads) thread.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  for (const Line& sum : sums) total ^= sum;
  return share * num_threads / seconds.count() / 1e9;
}

}  // namespace

int main(int, char** arguments) {
  const size_t num_threads = atoi(arguments[1]), bytes = size_t(atoi(arguments[2])) << 20;
  const int repeats = atoi(arguments[3]);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  madvise(memory, bytes, MADV_HUGEPAGE);
  char* buffer = static_cast<char*>(memory);
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) *reinterpret_cast<uint64_t*>(buffer + i) = i * 7;
  for (std::string line; std::getline(std::cin, line);) {
    double best = 0;
    for (int i = 0; i < repeats; ++i) {
      const double found = pass(buffer, bytes, num_threads);
      if (found > best) best = found;
    }
    printf("%.3f\n", best);
    fflush(stdout);
  }
  return total[0] == 1 ? 2 : 0;  // decided by what was read
}
