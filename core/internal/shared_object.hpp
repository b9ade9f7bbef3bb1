// Whether a file can be handed to dlopen at all.
//
// dlopen trusts what it maps: of a file that was cut short, the pages past its end raise SIGBUS when they are touched,
// and a table whose address lies outside the image raises SIGSEGV; no caller can catch either. So everything that says
// where things are, the headers and the dynamic section, is read first and held against the file's size, against the
// segments and against the section table, which says most of it a second time. Damage inside the tables, the code or
// the data that these point to cannot be seen here.
#pragma once

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace dsalt::internal {

/// The parts of an ELF file that shared_object_fault compares.
class SharedObject {
 public:
  using Segment = ElfW(Phdr);
  using Section = ElfW(Shdr);
  using Tag = std::int64_t;

  SharedObject(std::ifstream& stream, std::uint64_t size, std::vector<Segment> segments, std::vector<Section> sections,
               std::uint64_t names)
      : stream_(stream), size_(size), segments_(std::move(segments)), sections_(std::move(sections)), names_(names) {}

  /// Empty when the segments and the dynamic section can be what they say.
  std::string fault() {
    for (const auto& step : {&SharedObject::segment_fault, &SharedObject::read_dynamic, &SharedObject::range_fault,
                             &SharedObject::format_fault, &SharedObject::section_fault})
      if (std::string text = (this->*step)(); !text.empty()) return text;
    return "";
  }

 private:
  template <class T>
  bool read(std::uint64_t offset, T& value) {
    if (offset > size_ || sizeof value > size_ - offset) return false;
    stream_.clear();
    stream_.seekg(static_cast<std::streamoff>(offset));
    stream_.read(reinterpret_cast<char*>(&value), sizeof value);
    return static_cast<bool>(stream_);
  }

  /// The segment in which all of [address, address + bytes) is mapped.
  const Segment* mapping(std::uint64_t address, std::uint64_t bytes) const {
    for (const Segment& segment : segments_)
      if (segment.p_type == PT_LOAD && address >= segment.p_vaddr && address - segment.p_vaddr < segment.p_memsz &&
          bytes <= segment.p_memsz - (address - segment.p_vaddr))
        return &segment;
    return nullptr;
  }

  /// Reads from the image as the file gives it. False outside of the file's part of a segment.
  template <class T>
  bool read_image(std::uint64_t address, T& value) {
    const Segment* segment = mapping(address, sizeof value);
    if (segment == nullptr || address - segment->p_vaddr + sizeof value > segment->p_filesz) return false;
    return read(segment->p_offset + (address - segment->p_vaddr), value);
  }

  bool has(Tag tag) const { return dynamic_.count(tag) != 0; }
  std::uint64_t value(Tag tag) const {
    const auto found = dynamic_.find(tag);
    return found == dynamic_.end() ? 0 : found->second;
  }

  std::string segment_fault() {
    std::uint64_t end = 0;
    for (const Segment& segment : segments_) {
      if (segment.p_memsz > UINTPTR_MAX - segment.p_vaddr)
        return "is damaged: a segment wraps around the address space";
      switch (segment.p_type) {
        case PT_LOAD:
          if (segment.p_filesz > segment.p_memsz) return "is damaged: a segment is larger in the file than in memory";
          if (segment.p_vaddr < end) return "is damaged: its segments overlap or are out of order";
          end = std::uint64_t{segment.p_vaddr} + segment.p_memsz;
          break;
        case PT_PHDR:
        case PT_NOTE:
        case PT_TLS:
        case PT_GNU_PROPERTY:
          if (segment.p_filesz != 0 && mapping(segment.p_vaddr, segment.p_filesz) == nullptr)
            return "is damaged: a segment of type " + std::to_string(segment.p_type) +
                   " lies outside of what is loaded";
          break;
        case PT_GNU_RELRO:  // becomes read-only, to the end of a page
          if (std::none_of(segments_.begin(), segments_.end(), [&](const Segment& load) {
                const std::uint64_t bytes = std::uint64_t{segment.p_vaddr} - load.p_vaddr + segment.p_memsz;
                return load.p_type == PT_LOAD && segment.p_vaddr >= load.p_vaddr &&
                       (bytes <= load.p_memsz || bytes - load.p_memsz < load.p_align);
              }))
            return "is damaged: the part to be made read-only lies outside of what is loaded";
          break;
        default: break;
      }
    }
    return "";
  }

  std::string read_dynamic() {
    const auto is_dynamic = [](const Segment& segment) { return segment.p_type == PT_DYNAMIC; };
    const auto found = std::find_if(segments_.begin(), segments_.end(), is_dynamic);
    if (found == segments_.end()) return "has no dynamic section";
    if (std::count_if(segments_.begin(), segments_.end(), is_dynamic) != 1) return "has several dynamic sections";
    place_ = *found;
    const Segment* segment = mapping(place_.p_vaddr, place_.p_filesz);
    if (segment == nullptr || place_.p_vaddr % alignof(ElfW(Dyn)) != 0 || place_.p_offset < segment->p_offset ||
        place_.p_offset - segment->p_offset != place_.p_vaddr - segment->p_vaddr ||
        place_.p_offset - segment->p_offset + place_.p_filesz > segment->p_filesz)
      return "is damaged: its dynamic section lies outside of what is loaded";
    // The dynamic linker adds the load address to the entries in place.
    if ((segment->p_flags & PF_W) == 0) return "is damaged: its dynamic section is read-only";

    for (std::uint64_t i = 0; i < place_.p_filesz / sizeof(ElfW(Dyn)); ++i) {
      ElfW(Dyn) entry{};
      if (!read(place_.p_offset + i * sizeof entry, entry)) return "cannot be read: its dynamic section is unreadable";
      if (entry.d_tag == DT_NULL) return "";
      strings_.insert(strings_.end(), names_a_string(entry.d_tag) ? 1 : 0, entry.d_un.d_val);
      if (!dynamic_.emplace(entry.d_tag, entry.d_un.d_val).second && entry.d_tag != DT_NEEDED &&
          !names_a_string(entry.d_tag))
        return "is damaged: its dynamic section has two entries of type " + std::to_string(entry.d_tag);
    }
    return "is damaged: its dynamic section has no end";
  }

  static bool names_a_string(Tag tag) {
    return tag == DT_NEEDED || tag == DT_SONAME || tag == DT_RPATH || tag == DT_RUNPATH || tag == DT_AUXILIARY ||
           tag == DT_FILTER;
  }

  static std::string outside(Tag tag) {
    return "is damaged: entry " + std::to_string(tag) + " of its dynamic section points outside of what is loaded";
  }

  /// Every table lies in one segment, every string in the string table.
  std::string range_fault() {
    const struct {
      Tag address, size;
    } tables[] = {{DT_STRTAB, DT_STRSZ},
                  {DT_RELA, DT_RELASZ},
                  {DT_REL, DT_RELSZ},
                  {DT_JMPREL, DT_PLTRELSZ},
                  {relr, relr_size},
                  {DT_INIT_ARRAY, DT_INIT_ARRAYSZ},
                  {DT_FINI_ARRAY, DT_FINI_ARRAYSZ},
                  {DT_PREINIT_ARRAY, DT_PREINIT_ARRAYSZ}};
    for (const auto& table : tables) {
      if (has(table.address) != has(table.size))
        return "is damaged: its dynamic section has only one of the entries " + std::to_string(table.address) +
               " and " + std::to_string(table.size);
      if (has(table.address) && mapping(value(table.address), value(table.size)) == nullptr)
        return outside(table.address);
    }
    for (const Tag tag : {DT_SYMTAB, DT_HASH, DT_GNU_HASH, DT_VERSYM, DT_VERNEED, DT_VERDEF, DT_PLTGOT})
      if (has(tag) && mapping(value(tag), sizeof(ElfW(Word))) == nullptr) return outside(tag);
    for (const Tag tag : {DT_INIT, DT_FINI}) {
      if (!has(tag)) continue;
      const Segment* segment = mapping(value(tag), 1);
      if (segment == nullptr || (segment->p_flags & PF_X) == 0) return outside(tag);
    }

    char last = 1;
    if (!has(DT_STRTAB) || !has(DT_SYMTAB)) return "is damaged: its dynamic section names no symbols";
    if (value(DT_STRSZ) == 0 || !read_image(value(DT_STRTAB) + value(DT_STRSZ) - 1, last) || last != 0)
      return "is damaged: its string table has no end";
    for (const std::uint64_t offset : strings_)
      if (offset >= value(DT_STRSZ)) return "is damaged: its dynamic section has a name outside of the string table";
    return "";
  }

  /// What the dynamic linker takes for granted: it asserts, or does not look.
  std::string format_fault() {
    const struct {
      Tag tag;
      std::uint64_t size;
    } sizes[] = {{DT_SYMENT, sizeof(ElfW(Sym))},
                 {DT_RELAENT, sizeof(ElfW(Rela))},
                 {DT_RELENT, sizeof(ElfW(Rel))},
                 {relr_entry, sizeof(ElfW(Addr))}};
    for (const auto& [tag, size] : sizes)
      if (has(tag) && value(tag) != size)
        return "is damaged: entry " + std::to_string(tag) + " of its dynamic section is " + std::to_string(value(tag)) +
               ", need " + std::to_string(size);
    const bool relocated = (has(DT_RELA) && !has(DT_RELAENT)) || (has(DT_REL) && !has(DT_RELENT)) ||
                           (has(relr) && !has(relr_entry)) || (has(DT_JMPREL) && !has(DT_PLTREL));
    if (relocated || !has(DT_SYMENT)) return "is damaged: its dynamic section does not say how large table entries are";
#if defined(__x86_64__) || defined(__aarch64__)
    if (has(DT_REL) || (has(DT_PLTREL) && value(DT_PLTREL) != DT_RELA))
      return "is damaged: its dynamic section names relocations of another kind of processor";
#if defined(__x86_64__)
    constexpr auto relative = R_X86_64_RELATIVE;
#else
    constexpr auto relative = R_AARCH64_RELATIVE;
#endif
    // The first DT_RELACOUNT relocations are done without looking at their type.
    if (value(DT_RELACOUNT) > value(DT_RELASZ) / sizeof(ElfW(Rela))) return count_fault;
    for (std::uint64_t i = 0; i < value(DT_RELACOUNT); ++i) {
      ElfW(Rela) entry{};
      if (!read_image(value(DT_RELA) + i * sizeof entry, entry) || ELF64_R_TYPE(entry.r_info) != relative)
        return count_fault;
    }
#endif
    if ((has(DT_VERNEED) || has(DT_VERDEF)) && !has(DT_VERSYM)) return "is damaged: it has versions, but of no symbols";
    return "";
  }

  std::string section_name(const Section& section) {
    std::string name;
    for (char letter = 0; name.size() < 16 && read(names_ + section.sh_name + name.size(), letter) && letter != 0;)
      name += letter;
    return name;
  }

  /// Whether the segments load this section from its place in the file, with the rights that it needs.
  bool is_mapped(const Section& section) const {
    if (section.sh_type == SHT_NOBITS && (section.sh_flags & SHF_TLS) != 0) return true;  // occupies no addresses
    const Segment* segment = mapping(section.sh_addr, section.sh_size);
    if (segment == nullptr || (segment->p_flags & PF_R) == 0) return false;
    if ((section.sh_flags & SHF_WRITE) != 0 && (segment->p_flags & PF_W) == 0) return false;
    if ((section.sh_flags & SHF_EXECINSTR) != 0 && (segment->p_flags & PF_X) == 0) return false;
    if (section.sh_type == SHT_NOBITS) return true;
    const std::uint64_t within = section.sh_addr - segment->p_vaddr;
    return within + section.sh_size <= segment->p_filesz && section.sh_offset >= segment->p_offset &&
           section.sh_offset - segment->p_offset == within;
  }

  /// The section table gives the place of most tables again. A file without one is taken as it is.
  std::string section_fault() {
    if (sections_.empty()) return "";
    const std::string disagree = "is damaged: its section table and its dynamic section disagree about ";
    const struct {
      ElfW(Word) type;
      Tag address, size;  // size 0: no entry gives it
      const char* what;
    } kinds[] = {{SHT_DYNSYM, DT_SYMTAB, 0, "the symbols"},
                 {SHT_HASH, DT_HASH, 0, "the hash table"},
                 {SHT_GNU_HASH, DT_GNU_HASH, 0, "the hash table"},
                 {SHT_GNU_versym, DT_VERSYM, 0, "symbol versions"},
                 {SHT_GNU_verneed, DT_VERNEED, 0, "needed versions"},
                 {SHT_GNU_verdef, DT_VERDEF, 0, "defined versions"},
                 {section_relr, relr, relr_size, "relative relocations"},
                 {SHT_INIT_ARRAY, DT_INIT_ARRAY, DT_INIT_ARRAYSZ, "constructors"},
                 {SHT_FINI_ARRAY, DT_FINI_ARRAY, DT_FINI_ARRAYSZ, "destructors"}};
    for (const auto& kind : kinds) {
      const auto found = std::find_if(sections_.begin(), sections_.end(), [&](const Section& section) {
        return section.sh_type == kind.type && section.sh_size != 0;
      });
      const bool present = found != sections_.end();
      if (!present && value(kind.address) == 0) continue;
      if (present != has(kind.address) || found->sh_addr != value(kind.address) ||
          (kind.size != 0 && found->sh_size != value(kind.size)))
        return disagree + kind.what;
      if (kind.type != SHT_DYNSYM) continue;
      if (found->sh_link >= sections_.size() || sections_[found->sh_link].sh_addr != value(DT_STRTAB) ||
          sections_[found->sh_link].sh_size != value(DT_STRSZ))
        return disagree + "the string table";
    }

    bool global_offsets = !has(DT_PLTGOT);
    const struct { Tag address, size; } relocations[] = {{DT_RELA, DT_RELASZ}, {DT_JMPREL, DT_PLTRELSZ}};
    bool begins[2] = {!has(DT_RELA), !has(DT_JMPREL)}, ends[2] = {begins[0], begins[1]};
    for (const Section& section : sections_) {
      if ((section.sh_flags & SHF_ALLOC) == 0 || section.sh_size == 0) continue;
      if (!is_mapped(section)) return "is damaged: its section table and its segments disagree";
      global_offsets |= section.sh_addr == value(DT_PLTGOT);
      if (section.sh_type == SHT_DYNAMIC && section.sh_addr != place_.p_vaddr) return disagree + "itself";
      if (section.sh_type == SHT_PROGBITS && (section.sh_flags & SHF_EXECINSTR) != 0) {
        const std::string name = section_name(section);
        if ((name == ".init" && value(DT_INIT) != section.sh_addr) ||
            (name == ".fini" && value(DT_FINI) != section.sh_addr))
          return disagree + "its " + name + " code";
      }
      if (section.sh_type != SHT_RELA) continue;
      bool covered = false;
      for (int i = 0; i < 2; ++i) {
        const std::uint64_t begin = value(relocations[i].address), end = begin + value(relocations[i].size);
        begins[i] |= section.sh_addr == begin;
        ends[i] |= section.sh_addr + section.sh_size == end;
        covered |= section.sh_addr >= begin && section.sh_addr + section.sh_size <= end;
      }
      if (!covered) return disagree + "relocations";
    }
    if (!begins[0] || !begins[1] || !ends[0] || !ends[1]) return disagree + "relocations";
    return global_offsets ? "" : disagree + "the global offset table";
  }

  // Younger than some <elf.h>.
  static constexpr Tag relr_size = 35, relr = 36, relr_entry = 37;
  static constexpr ElfW(Word) section_relr = 19;
  static constexpr const char* count_fault = "is damaged: its dynamic section miscounts the relocations";

  std::ifstream& stream_;
  std::uint64_t size_;
  std::vector<Segment> segments_;
  std::vector<Section> sections_;
  std::uint64_t names_;  // where the names of the sections begin in the file
  Segment place_{};      // of the dynamic section
  std::map<Tag, std::uint64_t> dynamic_;
  std::vector<std::uint64_t> strings_;
};

/// Empty when `file` is a complete ELF shared object for this machine whose headers can be followed; otherwise the rest
/// of a sentence that begins with the file's name: "is not an ELF file", "is cut short: ...".
inline std::string shared_object_fault(const std::filesystem::path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (error) return "cannot be read: " + error.message();
  if (!std::filesystem::is_regular_file(status)) return "is not a regular file";
  const std::uint64_t size = std::filesystem::file_size(file, error);
  if (error) return "cannot be read: " + error.message();

  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return "cannot be read: " + std::generic_category().message(errno);

  ElfW(Ehdr) header{};
  stream.read(reinterpret_cast<char*>(&header), sizeof header);
  if (stream.gcount() < SELFMAG || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return "is not an ELF file";
  if (stream.gcount() != sizeof header) return "is cut short: it ends inside the ELF header";

  constexpr unsigned char data = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
  constexpr unsigned char word = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
#if defined(__x86_64__)
  const bool machine = header.e_machine == EM_X86_64;
#elif defined(__aarch64__)
  const bool machine = header.e_machine == EM_AARCH64;
#else
  const bool machine = true;  // dlopen decides
#endif
  if (header.e_ident[EI_CLASS] != word || header.e_ident[EI_DATA] != data || !machine)
    return "was built for another kind of processor";
  if (header.e_type != ET_DYN) return "is an ELF file, but not a shared object";

  const auto ends_after_file = [&](std::uint64_t offset, std::uint64_t bytes) {
    return offset > size || bytes > size - offset;
  };
  const auto cut_short = [&](const char* what, std::uint64_t offset, std::uint64_t bytes) {
    return std::string("is cut short: ") + what + " needs bytes " + std::to_string(offset) + " to " +
           std::to_string(offset + bytes) + ", the file has " + std::to_string(size);
  };

  if (header.e_phnum == 0 || header.e_phentsize != sizeof(ElfW(Phdr))) return "has no usable program headers";
  const std::uint64_t table = std::uint64_t{header.e_phnum} * sizeof(ElfW(Phdr));
  if (ends_after_file(header.e_phoff, table)) return cut_short("the program header table", header.e_phoff, table);
  std::vector<ElfW(Phdr)> segments(header.e_phnum);
  stream.seekg(static_cast<std::streamoff>(header.e_phoff));
  stream.read(reinterpret_cast<char*>(segments.data()), static_cast<std::streamsize>(table));
  if (!stream) return "cannot be read: the program headers are unreadable";
  bool dynamic = false;
  for (const auto& segment : segments) {
    dynamic |= segment.p_type == PT_DYNAMIC;
    if (segment.p_type != PT_NULL && ends_after_file(segment.p_offset, segment.p_filesz))
      return cut_short("a segment", segment.p_offset, segment.p_filesz);
  }
  if (!dynamic) return "has no dynamic section";

  // The section table closes the file, so that any missing tail shows here. (dlopen itself does not need it.)
  const std::uint64_t sections = std::uint64_t{header.e_shnum} * header.e_shentsize;
  if (ends_after_file(header.e_shoff, sections)) return cut_short("the section table", header.e_shoff, sections);
  if (sections != 0 && header.e_shentsize != sizeof(ElfW(Shdr))) return "has no usable section table";
  std::vector<ElfW(Shdr)> section_table(sections == 0 ? 0 : header.e_shnum);
  if (!section_table.empty()) {
    stream.seekg(static_cast<std::streamoff>(header.e_shoff));
    stream.read(reinterpret_cast<char*>(section_table.data()), static_cast<std::streamsize>(sections));
    if (!stream) return "cannot be read: the section table is unreadable";
    if (header.e_shstrndx >= section_table.size()) return "has no usable section table";
  }
  const std::uint64_t names = section_table.empty() ? 0 : section_table[header.e_shstrndx].sh_offset;
  return SharedObject(stream, size, std::move(segments), std::move(section_table), names).fault();
}

}  // namespace dsalt::internal
