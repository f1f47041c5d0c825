# What every target of the project compiles with.
add_library(baleen_options INTERFACE)
target_compile_options(baleen_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wnon-virtual-dtor>)
# Everywhere, because a precompiled header fits one set of options.
target_link_libraries(baleen_options INTERFACE OpenMP::OpenMP_CXX)
if(BALEEN_PRECOMPILE)
  target_compile_options(baleen_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)  # for ccache
endif()
# A product summed in another order has other bits: no -ffast-math anywhere. Contraction to FMA is allowed (GCC's default outside ISO
# mode) but CMAKE_CXX_EXTENSIONS OFF selects ISO, so say it.
target_compile_options(baleen_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=fast>)
if(BALEEN_SANITIZE STREQUAL "address")
  target_compile_options(baleen_options INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(baleen_options INTERFACE -fsanitize=address,undefined)
elseif(BALEEN_SANITIZE STREQUAL "thread")
  target_compile_options(baleen_options INTERFACE -fsanitize=thread -Wno-tsan)
  target_link_options(baleen_options INTERFACE -fsanitize=thread)
elseif(BALEEN_SANITIZE STREQUAL "fuzzer")  # with clang
  target_compile_options(baleen_options INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(baleen_options INTERFACE -fsanitize=address,undefined)
endif()
