// Runs one kernel call that stands in a file: memory, then the kernel's words, pointers as offsets into that memory.
// Writes the memory out afterwards. For libraries of machines that are emulated: walker LIBRARY CALL MEMORY.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

struct Launch {
  void* kernel;
  const void* args;
  uint64_t wait;
};

int main(int, char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW);
  if (library == nullptr) return std::puts(dlerror()), 1;
  const auto gather = reinterpret_cast<void* (*)(int64_t)>(dlsym(library, "tdm_team_new"));
  const auto run = reinterpret_cast<void (*)(void*, const Launch*, int64_t)>(dlsym(library, "tdm_run"));
  const auto release = reinterpret_cast<void (*)(void*)>(dlsym(library, "tdm_team_free"));

  std::ostringstream read;
  read << std::ifstream(argv[3], std::ios::binary).rdbuf();
  const std::string bytes = read.str();
  std::vector<uint64_t> memory((bytes.size() + 7) / 8);
  bytes.copy(reinterpret_cast<char*>(memory.data()), bytes.size());

  std::ifstream call(argv[2]);
  std::string symbol;
  int64_t threads;
  call >> symbol >> threads;
  std::vector<uint64_t> words;
  for (uint64_t is_offset, word; call >> is_offset >> word;)
    words.push_back(is_offset ? reinterpret_cast<uint64_t>(memory.data()) + word : word);

  void* team = gather(threads);
  const Launch launch{dlsym(library, symbol.c_str()), words.data(), 1};
  run(team, &launch, 1);
  release(team);
  std::ofstream(argv[3], std::ios::binary).write(reinterpret_cast<const char*>(memory.data()), bytes.size());
}
