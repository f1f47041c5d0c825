#include "data/byte_source.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <span>

#include "base/error.h"
#include "data/foreign_file.h"

namespace baleen {
namespace {

constexpr std::size_t block_bytes = std::size_t{256} << 10;
constexpr const char* repack = "copy or pack the file again (gzip -t tests it)";
constexpr const char* repack_zstd = "copy or pack the file again (zstd -t tests it)";

}  // namespace

struct ByteSource::Inflate {
  z_stream stream{};
  bool in_member = true;  // inside an archive, whose end must come
  bool done = false;
  Inflate() {
    if (inflateInit2(&stream, 15 + 16) != Z_OK) throw std::bad_alloc();  // + 16: gzip with its checksum
  }
  ~Inflate() { inflateEnd(&stream); }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;
};

struct ByteSource::Zstd {
  ZSTD_DStream* stream = ZSTD_createDStream();
  bool in_frame = false;  // inside a frame, whose end must come
  Zstd() {
    if (stream == nullptr) throw std::bad_alloc();
  }
  ~Zstd() { ZSTD_freeDStream(stream); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;
};

ByteSource::ByteSource(const std::filesystem::path& path) : path_(path), file_(nullptr, &std::fclose) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw Error(ExitCode::bad_data, "cannot read: Is a directory", path.string(), "name the files inside it");
  file_.reset(std::fopen(path.c_str(), "rbe"));
  if (!file_)
    throw Error(ExitCode::bad_data, std::string("cannot read: ") + std::strerror(errno), path.string(),
                "check the path and its permissions");
  refill();
  const bool named_gzip = path.extension() == ".gz", named_zstd = path.extension() == ".zst";
  if (block_.starts_with("\x1f\x8b\x08")) {
    inflate_ = std::make_unique<Inflate>();
    return;
  }
  if (block_.starts_with("\x28\xb5\x2f\xfd")) {
    zstd_ = std::make_unique<Zstd>();
    return;
  }
  const std::string format = recognise_format(std::as_bytes(std::span(block_)));
  if (named_gzip || named_zstd || !format.empty())
    throw Error(ExitCode::bad_data,
                (named_gzip   ? "not a gzip archive: it looks like "
                 : named_zstd ? "not a zstd archive: it looks like "
                              : "not text: it looks like ") +
                    describe_content(std::as_bytes(std::span(block_))),
                path.string(), "text, .jsonl, or either as .gz or .zst can be tokenized");
}

ByteSource::~ByteSource() = default;

std::size_t ByteSource::refill() {
  block_.resize(block_bytes);
  const std::size_t got = std::fread(block_.data(), 1, block_bytes, file_.get());
  if (got < block_bytes && std::ferror(file_.get()) != 0)
    throw Error(ExitCode::bad_data, std::string("cannot read: ") + std::strerror(errno), path_.string());
  block_.resize(got);
  used_ = 0;
  return got;
}

std::size_t ByteSource::read(std::string& out, std::size_t bytes) {
  const std::size_t before = out.size();
  out.resize(before + bytes);
  const std::size_t got = inflate_ ? read_gzip(out.data() + before, bytes)
                          : zstd_  ? read_zstd(out.data() + before, bytes)
                                   : read_plain(out.data() + before, bytes);
  out.resize(before + got);
  return got;
}

std::size_t ByteSource::read_plain(char* out, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    if (used_ == block_.size() && refill() == 0) break;
    const std::size_t take = std::min(bytes - done, block_.size() - used_);
    std::memcpy(out + done, block_.data() + used_, take);
    used_ += take;
    done += take;
    consumed_ += take;
  }
  return done;
}

bool ByteSource::next_member() {
  // RFC 1952: an archive is a series of members. Zeros after the last one are padding to a tape's or disk's block.
  std::uint64_t zeros = 0;
  for (;;) {
    if (used_ == block_.size() && refill() == 0) return false;
    const char byte = block_[used_];
    if (byte == '\x1f' && zeros == 0) return true;
    if (byte != '\0')
      throw Error(ExitCode::bad_data, "something that is not gzip follows the archive at byte " + std::to_string(consumed_), path_.string(),
                  repack);
    ++zeros, ++used_, ++consumed_;
  }
}

std::size_t ByteSource::read_gzip(char* out, std::size_t bytes) {
  Inflate& state = *inflate_;
  std::size_t done = 0;
  while (done < bytes && !state.done) {
    if (!state.in_member) {
      state.done = !next_member();
      if (state.done) break;
      inflateReset(&state.stream);
      state.in_member = true;
    }
    if (used_ == block_.size() && refill() == 0)
      throw Error(ExitCode::bad_data, "the gzip archive is truncated: it ends at byte " + std::to_string(consumed_) + " inside its data",
                  path_.string(), repack);
    const std::size_t available = block_.size() - used_, room = std::min<std::size_t>(bytes - done, std::size_t{1} << 30);
    state.stream.next_in = reinterpret_cast<Bytef*>(block_.data() + used_);
    state.stream.avail_in = static_cast<uInt>(available);
    state.stream.next_out = reinterpret_cast<Bytef*>(out + done);
    state.stream.avail_out = static_cast<uInt>(room);
    const int status = inflate(&state.stream, Z_NO_FLUSH);
    used_ += available - state.stream.avail_in;
    consumed_ += available - state.stream.avail_in;
    done += room - state.stream.avail_out;
    if (status == Z_STREAM_END) {
      state.in_member = false;
    } else if (status != Z_OK && status != Z_BUF_ERROR) {  // Z_BUF_ERROR: this block gave nothing yet
      throw Error(ExitCode::bad_data,
                  "the gzip archive is damaged near byte " + std::to_string(consumed_) +
                      (state.stream.msg != nullptr ? std::string(": ") + state.stream.msg : ""),
                  path_.string(), repack);
    }
  }
  return done;
}

// RFC 8878: an archive is a series of frames; the library passes over skippable ones.
std::size_t ByteSource::read_zstd(char* out, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    if (used_ == block_.size() && refill() == 0) {
      if (!zstd_->in_frame) break;
      throw Error(ExitCode::bad_data, "the zstd archive is truncated: it ends at byte " + std::to_string(consumed_) + " inside its data",
                  path_.string(), repack_zstd);
    }
    ZSTD_inBuffer in{block_.data(), block_.size(), used_};
    ZSTD_outBuffer to{out, bytes, done};
    const std::size_t result = ZSTD_decompressStream(zstd_->stream, &to, &in);
    if (ZSTD_isError(result) != 0)
      throw Error(ExitCode::bad_data,
                  "the zstd archive is damaged near byte " + std::to_string(consumed_) + ": " + ZSTD_getErrorName(result), path_.string(),
                  repack_zstd);
    zstd_->in_frame = result != 0;
    consumed_ += in.pos - used_;
    used_ = in.pos;
    done = to.pos;
  }
  return done;
}

}  // namespace baleen
