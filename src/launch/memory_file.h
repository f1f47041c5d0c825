// Files that are memory: what the ranks of one machine share, and what nothing can leave behind.
#pragma once

#include <cstddef>

#include "base/descriptor.h"

namespace baleen {

// Pages of this size where a mapping asks for them (madvise(MADV_HUGEPAGE)) and the system has some to give.
inline constexpr std::size_t huge_page = std::size_t{2} << 20;

// A sparse file of `bytes` zeros without a name, which lives exactly as long as somebody holds it; close-on-exec.
//
// memfd_create() alone gives huge pages only where the administrator has said so for the whole system (shmem_enabled), which few have. A
// tmpfs of one's own may have them (Linux, Documentation/admin-guide/mm/transhuge.rst, "Hugepages in tmpfs/shmem"), so the file is made in
// one that is mounted nowhere: at once where this process may mount, else by a child in a user namespace of its own. Where neither is
// allowed the file is a memfd with small pages. Throws Error(out_of_memory) when the machine refuses the file altogether.
Descriptor make_memory_file(std::size_t bytes);

}  // namespace baleen
