// Modules that cannot be used: each gives one sentence in list_backends, the same one in BackendUnavailable, and never
// ends the process.
#include <dlfcn.h>
#include <elf.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <random>

#include "dsalt/errors.hpp"
#include "dsalt/module.hpp"
#include "dsalt/version.hpp"
#include "support.hpp"

using namespace module_test;
namespace fs = std::filesystem;

namespace {

/// The reason why this module is refused. Checks everything that must hold whatever the reason is.
std::string refusal(const fs::path& file) {
  const dsalt::BackendOptions options = with_module(file);
  const Environment no_default("DSALT_BACKEND", std::nullopt);

  const std::vector<dsalt::BackendInfo> list = dsalt::list_backends(options);
  BOOST_REQUIRE_EQUAL(list.size(), 3U);
  BOOST_TEST(list[0].name == "reference");
  BOOST_TEST(list[0].available);
  BOOST_TEST(list[1].name == "cpu");
  BOOST_TEST(list[1].available);
  BOOST_TEST(list[2].name == "cuda");
  BOOST_TEST(!list[2].available);
  BOOST_TEST(!list[2].detail.empty());

  for (const char* name : {"cuda", "cuda:0", "cuda:3"})
    BOOST_CHECK_EXCEPTION(dsalt::make_backend(name, options), dsalt::BackendUnavailable,
                          [&](const dsalt::BackendUnavailable& error) { return error.what() == list[2].detail; });
  // "auto" takes cpu and says so; it is not handed out under the name cuda.
  BOOST_TEST(dsalt::make_backend("auto", options)->name() == "cpu");
  return list[2].detail;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

#define CHECK_CONTAINS(text, part) \
  BOOST_CHECK_MESSAGE(contains(text, part), "\"" << text << "\" lacks \"" << part << '"')

}  // namespace

BOOST_AUTO_TEST_SUITE(refused_modules)

BOOST_AUTO_TEST_CASE(absent) {
  const TemporaryFolder folder;
  BOOST_TEST(refusal(folder.path()) == "module libdsalt_cuda.so not found in " + folder.path().string() +
                                           " (named by BackendOptions::module_path)");
  const fs::path file = folder.path() / "no_such_module.so";
  BOOST_TEST(refusal(file) == "module " + file.string() + " not found (named by BackendOptions::module_path)");

  const Environment variable("DSALT_MODULE_PATH", folder.path().string());
  BOOST_TEST(cuda_info({}).detail ==
             "module libdsalt_cuda.so not found in " + folder.path().string() + " (named by DSALT_MODULE_PATH)");
}

#ifdef DSALT_TEST_NOT_BUILT
BOOST_AUTO_TEST_CASE(not_built) {
  const Environment variable("DSALT_MODULE_PATH", std::nullopt);
  BOOST_TEST(cuda_info({}).detail == DSALT_TEST_NOT_BUILT);
}
#endif

#ifdef DSALT_TEST_REAL_MODULE
BOOST_AUTO_TEST_CASE(the_module_of_this_build_is_found_beside_libdsalt) {
  const Environment variable("DSALT_MODULE_PATH", std::nullopt);
  const std::string named = refusal(DSALT_TEST_REAL_MODULE);
  BOOST_TEST(cuda_info({}).detail == named);
  // Without a driver the reason is known word for word; with one, the gpu test takes over.
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr)
    BOOST_TEST(named == "no driver (libcuda.so.1 not found)");
}
#endif

BOOST_AUTO_TEST_CASE(wrong_magic) {
  const fs::path file = test_module("wrong_magic");
  BOOST_TEST(refusal(file) ==
             "module " + file.string() + " is not a libdsalt module: its magic is 0x1234, need 0x32424d544c415344");
}

BOOST_AUTO_TEST_CASE(wrong_abi) {
  const fs::path file = test_module("wrong_abi");
  BOOST_TEST(refusal(file) == "module " + file.string() + " was built for ABI 7, this libdsalt needs " +
                                  std::to_string(dsalt::module_abi_version) + "; rebuild it");
}

BOOST_AUTO_TEST_CASE(wrong_version) {
  const fs::path file = test_module("wrong_version");
  BOOST_TEST(refusal(file) == "module " + file.string() + " was built for libdsalt 9.8.7, this libdsalt is " +
                                  DSALT_VERSION_STRING + "; rebuild it");
  CHECK_CONTAINS(refusal(test_module("no_version")), "was built for libdsalt of no version");
}

BOOST_AUTO_TEST_CASE(incomplete_interface) {
  CHECK_CONTAINS(refusal(test_module("incomplete")), "is incomplete: it has no probe or no create");
  CHECK_CONTAINS(refusal(test_module("null_interface")), "its entry function returned null");
}

BOOST_AUTO_TEST_CASE(no_entry_symbol) {
  const fs::path file = test_module("no_entry");
  BOOST_TEST(refusal(file) == "not a loadable module: " + file.string() + " has no symbol dsalt_backend_module");
}

BOOST_AUTO_TEST_CASE(unresolved_symbol) {
  const std::string reason = refusal(test_module("missing_symbol"));
  CHECK_CONTAINS(reason, "not a loadable module: ");
  CHECK_CONTAINS(reason, "dsalt_test_function_that_nothing_provides");
}

BOOST_AUTO_TEST_CASE(no_regular_file) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "libdsalt_cuda.so";
  fs::create_directory(file);
  BOOST_TEST(refusal(folder.path()) == "not a loadable module: " + file.string() + " is not a regular file");
  fs::remove(file);
  BOOST_REQUIRE_EQUAL(mkfifo(file.c_str(), 0600), 0);  // opening it would wait for a writer for ever
  BOOST_TEST(refusal(file) == "not a loadable module: " + file.string() + " is not a regular file");
  fs::remove(file);
  fs::create_symlink(folder.path() / "nothing", file);
  CHECK_CONTAINS(refusal(file), "not a loadable module: ");
}

BOOST_AUTO_TEST_CASE(random_bytes) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "libdsalt_cuda.so";
  std::mt19937 random(20261129);
  for (const std::size_t size : {0, 1, 3, 4, 63, 64, 4096, 300001}) {
    std::vector<char> bytes(size);
    for (char& byte : bytes) byte = static_cast<char>(random());
    write_bytes(file, bytes.data(), size);
    BOOST_TEST(refusal(file) == "not a loadable module: " + file.string() + " is not an ELF file");
    // The same behind the right first bytes.
    const char magic[] = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT};
    if (size < 64) continue;
    std::copy(std::begin(magic), std::end(magic), bytes.begin());
    write_bytes(file, bytes.data(), size);
    CHECK_CONTAINS(refusal(file), "not a loadable module: ");
  }
}

void check_truncations(const fs::path& whole) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "libdsalt_cuda.so";
  const std::vector<char> bytes = read_bytes(whole);
  std::vector<std::size_t> sizes = {4, 5, 63, 64, 65, bytes.size() - 1, bytes.size() - 64};
  for (std::size_t size = 128; size < bytes.size(); size += bytes.size() / 23 + 1) sizes.push_back(size);
  for (const std::size_t size : sizes) {
    write_bytes(file, bytes.data(), size);
    CHECK_CONTAINS(refusal(file), "not a loadable module: " + file.string() + " is cut short: ");
  }
}

BOOST_AUTO_TEST_CASE(cut_short) {
  check_truncations(test_module("working"));
#ifdef DSALT_TEST_REAL_MODULE
  check_truncations(DSALT_TEST_REAL_MODULE);
#endif
}

BOOST_AUTO_TEST_CASE(hostile_headers) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "libdsalt_cuda.so";
  const std::vector<char> bytes = read_bytes(test_module("working"));
  const auto check = [&](const std::string& expected, auto&& change) {
    std::vector<char> changed = bytes;
    auto* header = reinterpret_cast<Elf64_Ehdr*>(changed.data());
    change(*header, reinterpret_cast<Elf64_Phdr*>(changed.data() + header->e_phoff));
    write_bytes(file, changed.data(), changed.size());
    CHECK_CONTAINS(refusal(file), "not a loadable module: " + file.string() + " " + expected);
  };
  check("is cut short", [](Elf64_Ehdr& header, Elf64_Phdr*) { header.e_phoff = ~0ULL - 8; });
  check("is cut short", [](Elf64_Ehdr& header, Elf64_Phdr*) { header.e_phnum = 0xffff; });
  check("is cut short", [](Elf64_Ehdr& header, Elf64_Phdr*) { header.e_shoff = ~0ULL; });
  check("is cut short", [](Elf64_Ehdr&, Elf64_Phdr* segments) { segments[0].p_offset = ~0ULL; });
  check("is cut short", [](Elf64_Ehdr&, Elf64_Phdr* segments) { segments[0].p_filesz = ~0ULL; });
  const auto first = [](Elf64_Phdr* segment, Elf64_Word type) -> Elf64_Phdr& {
    while (segment->p_type != type) ++segment;
    return *segment;
  };
  check("is damaged: a segment is larger",
        [&](Elf64_Ehdr&, Elf64_Phdr* segments) { first(segments, PT_LOAD).p_memsz = 1; });
  check("is damaged: a segment wraps", [&](Elf64_Ehdr&, Elf64_Phdr* segments) {
    first(segments, PT_LOAD).p_vaddr = 4096;
    first(segments, PT_LOAD).p_memsz = ~0ULL;
  });
  check("is damaged: its segments overlap",
        [&](Elf64_Ehdr&, Elf64_Phdr* segments) { first(segments, PT_LOAD).p_memsz = 1ULL << 40; });
  check("is damaged: its dynamic section lies outside",
        [&](Elf64_Ehdr&, Elf64_Phdr* segments) { first(segments, PT_DYNAMIC).p_vaddr = 1ULL << 40; });
  check("is damaged: its dynamic section is read-only", [&](Elf64_Ehdr&, Elf64_Phdr* segments) {
    for (Elf64_Phdr* segment = segments; segment->p_type != PT_DYNAMIC; ++segment) segment->p_flags &= ~PF_W;
  });
  check("has no usable program headers", [](Elf64_Ehdr& header, Elf64_Phdr*) { header.e_phnum = 0; });
  check("has no usable program headers", [](Elf64_Ehdr& header, Elf64_Phdr*) { header.e_phentsize = 1; });
  check("was built for another kind of processor",
        [](Elf64_Ehdr& header, Elf64_Phdr*) { header.e_ident[EI_CLASS] = ELFCLASS32; });
  check("was built for another kind of processor", [](Elf64_Ehdr& header, Elf64_Phdr*) {
    header.e_machine = header.e_machine == EM_X86_64 ? EM_AARCH64 : EM_X86_64;
  });
  check("is an ELF file, but not a shared object", [](Elf64_Ehdr& header, Elf64_Phdr*) { header.e_type = ET_REL; });
}

/// Offset of the dynamic section in the file, and its size.
std::pair<std::size_t, std::size_t> dynamic_section(const std::vector<char>& bytes) {
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
  const auto* segments = reinterpret_cast<const Elf64_Phdr*>(bytes.data() + header->e_phoff);
  for (int i = 0; i < header->e_phnum; ++i)
    if (segments[i].p_type == PT_DYNAMIC) return {segments[i].p_offset, segments[i].p_filesz};
  throw std::runtime_error("no dynamic section");
}

Elf64_Dyn* entry_of(std::vector<char>& bytes, Elf64_Sxword tag) {
  const auto [offset, size] = dynamic_section(bytes);
  auto* entry = reinterpret_cast<Elf64_Dyn*>(bytes.data() + offset);
  for (std::size_t i = 0; i < size / sizeof *entry; ++i)
    if (entry[i].d_tag == tag) return entry + i;
  return nullptr;
}

void check_hostile_dynamic_section(const fs::path& whole) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "libdsalt_cuda.so";
  const std::vector<char> bytes = read_bytes(whole);
  const auto check = [&](const std::string& expected, const std::vector<char>& changed) {
    write_bytes(file, changed.data(), changed.size());
    CHECK_CONTAINS(refusal(file), "not a loadable module: " + file.string() + " " + expected);
  };
  int tried = 0;
  for (const Elf64_Sxword tag :
       {DT_STRTAB,  DT_SYMTAB,     DT_RELA,       DT_JMPREL,       DT_HASH,         DT_GNU_HASH, DT_INIT,
        DT_FINI,    DT_INIT_ARRAY, DT_FINI_ARRAY, DT_VERSYM,       DT_VERNEED,      DT_VERDEF,   DT_PLTGOT,
        DT_STRSZ,   DT_RELASZ,     DT_PLTRELSZ,   DT_INIT_ARRAYSZ, DT_FINI_ARRAYSZ, DT_NEEDED,   DT_SONAME,
        DT_RUNPATH, DT_SYMENT,     DT_RELAENT,    DT_PLTREL,       DT_RELACOUNT})
    for (const Elf64_Xword value : {0x7fffffff0000ULL, 0x40000000ULL, ~0ULL, ~7ULL}) {
      std::vector<char> changed = bytes;
      Elf64_Dyn* entry = entry_of(changed, tag);
      if (entry == nullptr) break;
      entry->d_un.d_val = value;
      check("is damaged: ", changed);
      ++tried;
    }
  BOOST_TEST(tried >= 4 * 12);

  // Inside of the image, and yet not the table.
  for (const Elf64_Sxword tag : {DT_SYMTAB, DT_STRTAB, DT_INIT, DT_INIT_ARRAY, DT_GNU_HASH, DT_RELA}) {
    std::vector<char> changed = bytes;
    if (Elf64_Dyn* entry = entry_of(changed, tag)) {
      entry->d_un.d_val += 8;
      check("is damaged: ", changed);
    }
  }
  std::vector<char> endless = bytes;
  const auto [offset, size] = dynamic_section(endless);
  for (std::size_t i = 0; i < size / sizeof(Elf64_Dyn); ++i) {
    auto* entry = reinterpret_cast<Elf64_Dyn*>(endless.data() + offset) + i;
    if (entry->d_tag == DT_NULL) entry->d_tag = 0x60000001 + static_cast<Elf64_Sxword>(i);
  }
  check("is damaged: its dynamic section has no end", endless);
}

BOOST_AUTO_TEST_CASE(hostile_dynamic_section) {
  check_hostile_dynamic_section(test_module("working"));
#ifdef DSALT_TEST_REAL_MODULE
  check_hostile_dynamic_section(DSALT_TEST_REAL_MODULE);
#endif
}

BOOST_AUTO_TEST_CASE(flipped_bits_of_the_dynamic_section_crash_nothing) {
  const TemporaryFolder folder;
  const std::vector<char> bytes = read_bytes(test_module("working"));
  const auto [offset, size] = dynamic_section(bytes);
  for (std::size_t at = offset; at < offset + size; ++at) {
    const pid_t child = fork();
    BOOST_REQUIRE(child >= 0);
    if (child == 0) {
      alarm(30);
      // A name for each, since a module that was accepted stays loaded.
      for (const int flip : {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff}) {
        std::vector<char> changed = bytes;
        changed[at] = static_cast<char>(changed[at] ^ flip);
        const fs::path file = folder.path() / (std::to_string(flip) + ".so");
        write_bytes(file, changed.data(), changed.size());
        const dsalt::BackendInfo info = cuda_info(with_module(file));
        if (info.detail.empty()) _exit(1);
        if (info.available) dsalt::make_backend("cuda", with_module(file));
      }
      _exit(0);
    }
    int status = 0;
    BOOST_REQUIRE_EQUAL(waitpid(child, &status, 0), child);
    BOOST_CHECK_MESSAGE(WIFEXITED(status) && WEXITSTATUS(status) == 0,
                        "byte " << at - offset << " of the dynamic section: wait status " << status);
  }
}

BOOST_AUTO_TEST_CASE(a_repaired_file_is_accepted) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "libdsalt_cuda.so";
  write_bytes(file, "junk", 4);
  refusal(folder.path());
  fs::remove(file);
  fs::copy_file(test_module("working"), file);
  BOOST_TEST(cuda_info(with_module(folder.path())).available);
}

BOOST_AUTO_TEST_SUITE_END()
