// Weights on their way from a file into a GPU's memory, on threads that never wait for an interpreter.
//
// Readers fill pinned buffers from the page cache while others of theirs are copied. The driver's functions come as
// addresses, so nothing here is linked against libcuda. `tandem.runtime.executor.cuda.weights` is the caller.

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Driver {
  int (*set_current)(void *context);
  int (*host_alloc)(void **made, std::size_t nbytes, unsigned flags);
  int (*host_free)(void *buffer);
  int (*stream_create)(void **made, unsigned flags);
  int (*stream_destroy)(void *stream);
  int (*synchronize)(void *stream);
  int (*event_create)(void **made, unsigned flags);
  int (*event_destroy)(void *event);
  int (*record)(void *event, void *stream);
  int (*wait)(void *event);
  int (*copy)(std::uint64_t target, const void *source, std::size_t nbytes, void *stream);
};
// Indices of the above, by which the caller names a call that failed.
enum Call {
  SET_CURRENT,
  HOST_ALLOC,
  HOST_FREE,
  STREAM_CREATE,
  STREAM_DESTROY,
  SYNCHRONIZE,
  EVENT_CREATE,
  EVENT_DESTROY,
  RECORD,
  WAIT,
  COPY
};
enum Fault { NONE = -1, READ = -2, SHORT = -3, THREADS = -4 };
constexpr unsigned NON_BLOCKING = 1, DISABLE_TIMING = 2;

struct Job {
  void *context;
  std::uint64_t address;
  std::int64_t nbytes, chunk;
  std::int32_t file, readers, buffers;
};

struct Found {
  std::int32_t fault, code; // a Fault or a Call; errno or the driver's error
  std::int64_t offset;      // of the file, where a read failed
  double ms;                // from the start to the end of the last copy
};

struct Buffer {
  void *memory = nullptr, *event = nullptr;
};

class Transfer {
 public:
  Transfer(const Driver &driver, const Job &job) : driver_(driver), job_(job), began_(Clock::now()) {
    try {
      for (int i = 0; i < job.readers; ++i) {
        {
          std::lock_guard lock(mutex_);
          ++running_;
        }
        threads_.emplace_back(&Transfer::run, this);
      }
    } catch (const std::system_error &error) {
      done({THREADS, error.code().value(), 0, 0});
    }
  }

  ~Transfer() {
    stop_ = true;
    for (auto &thread : threads_) thread.join();
  }

  // Whether every copy has ended, for which it waits so many seconds; what there is to say stands in `found` then.
  bool wait(double seconds, Found &found) {
    std::unique_lock lock(mutex_);
    const bool ended = ended_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return running_ == 0; });
    if (ended) found = found_;
    return ended;
  }

 private:
  void run() {
    void *stream = nullptr;
    std::vector<Buffer> buffers(job_.buffers);
    Found found = prepare(buffers, stream);
    if (found.fault == NONE) found = read(buffers, stream);
    // What is on its way still reads the buffers: each is waited for, and then whatever no event could be recorded for.
    for (auto &buffer : buffers) {
      const int code = buffer.event ? driver_.wait(buffer.event) : 0;
      if (code && found.fault == NONE) found = failed(WAIT, code);
    }
    const int code = stream ? driver_.synchronize(stream) : 0;
    if (code && found.fault == NONE) found = failed(SYNCHRONIZE, code);
    done(found);
    for (auto &buffer : buffers) {
      if (buffer.event) driver_.event_destroy(buffer.event);
      if (buffer.memory) driver_.host_free(buffer.memory);
    }
    if (stream) driver_.stream_destroy(stream);
  }

  Found prepare(std::vector<Buffer> &buffers, void *&stream) {
    if (int code = driver_.set_current(job_.context)) return failed(SET_CURRENT, code);
    if (int code = driver_.stream_create(&stream, NON_BLOCKING)) return failed(STREAM_CREATE, code);
    const std::size_t room = job_.chunk < job_.nbytes ? job_.chunk : job_.nbytes;
    for (auto &buffer : buffers) {
      if (int code = driver_.host_alloc(&buffer.memory, room, 0)) return failed(HOST_ALLOC, code);
      if (int code = driver_.event_create(&buffer.event, DISABLE_TIMING)) return failed(EVENT_CREATE, code);
    }
    return {NONE, 0, 0, 0};
  }

  Found read(std::vector<Buffer> &buffers, void *stream) {
    for (std::size_t turn = 0; !stop_; ++turn) {
      const std::int64_t offset = next_.fetch_add(job_.chunk);
      if (offset >= job_.nbytes) break;
      const std::int64_t left = job_.nbytes - offset, nbytes = left < job_.chunk ? left : job_.chunk;
      const Buffer &buffer = buffers[turn % buffers.size()];
      if (int code = driver_.wait(buffer.event)) return failed(WAIT, code);
      if (Found found = fill(static_cast<char *>(buffer.memory), offset, nbytes); found.fault != NONE) return found;
      if (int code = driver_.copy(job_.address + offset, buffer.memory, nbytes, stream)) return failed(COPY, code);
      if (int code = driver_.record(buffer.event, stream)) return failed(RECORD, code);
    }
    return {NONE, 0, 0, 0};
  }

  Found fill(char *memory, std::int64_t offset, std::int64_t nbytes) {
    while (nbytes > 0) {
      const ssize_t count = pread(job_.file, memory, nbytes, offset);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return {READ, errno, offset, 0};
      if (count == 0) return {SHORT, 0, offset, 0};
      memory += count, offset += count, nbytes -= count;
    }
    return {NONE, 0, 0, 0};
  }

  static Found failed(Call call, int code) { return {call, code, 0, 0}; }

  // One reader less runs; the first that failed says why, and the others stop.
  void done(const Found &found) {
    std::lock_guard lock(mutex_);
    if (found.fault != NONE && found_.fault == NONE) found_ = found;
    if (found.fault != NONE) stop_ = true;
    found_.ms = std::chrono::duration<double, std::milli>(Clock::now() - began_).count();
    if (--running_ == 0) ended_.notify_all();
  }

  const Driver driver_;
  const Job job_;
  const Clock::time_point began_;
  std::atomic<std::int64_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  int running_ = 0;
  Found found_{NONE, 0, 0, 0};
  std::vector<std::thread> threads_;
};

} // namespace

extern "C" {

std::int64_t tdm_copy_abi() { return 1; }

void *tdm_copy_start(const Driver *driver, const Job *job) { return new Transfer(*driver, *job); }

std::int32_t tdm_copy_wait(void *transfer, double seconds, Found *found) {
  return static_cast<Transfer *>(transfer)->wait(seconds, *found);
}

// Ends it, complete or not.
void tdm_copy_end(void *transfer) { delete static_cast<Transfer *>(transfer); }
}
