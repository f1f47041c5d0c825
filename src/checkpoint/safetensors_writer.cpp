#include "checkpoint/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace baleen::checkpoint {
namespace {

std::size_t tensor_bytes(const SafetensorsWriter::Tensor& tensor) {
  std::size_t bytes = stored_type_bytes(tensor.type);
  for (const std::int64_t extent : tensor.shape) {
    BALEEN_CHECK(extent >= 0, tensor.name, extent);
    BALEEN_CHECK(!__builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes), tensor.name);
  }
  return bytes;
}

// The header's JSON, in the order of the data. (A JSON library would sort the names or search them linearly.)
std::string header_text(const std::vector<SafetensorsWriter::Tensor>& tensors, const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += fmt::format("\"__metadata__\":{}", dump_json(nlohmann::json(metadata)));
  std::set<std::string_view> names;
  std::size_t offset = 0;
  for (const auto& tensor : tensors) {
    BALEEN_CHECK(tensor.name != "__metadata__" && names.insert(tensor.name).second, "tensor name", tensor.name);
    const std::size_t end = offset + tensor_bytes(tensor);
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", text.size() > 1 ? "," : "",
                        quote_json(tensor.name), stored_type_name(tensor.type), fmt::join(tensor.shape, ","), offset, end);
    offset = end;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  BALEEN_CHECK(text.size() <= safetensors_header_limit, "header bytes", text.size());
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<Tensor> tensors,
                                     const std::map<std::string, std::string>& metadata, Care care)
    : file_(path), care_(care), tensors_(std::move(tensors)) {
  const std::string text = header_text(tensors_, metadata);
  const std::uint64_t length = text.size();
  write(&length, sizeof length);
  write(text.data(), text.size());
}

std::string SafetensorsWriter::append(const void* data, std::size_t bytes, const std::stop_token& stop) {
  BALEEN_CHECK(next_ < tensors_.size() && part_written_ == 0, "tensors", tensors_.size(), part_written_);
  BALEEN_CHECK(bytes == tensor_bytes(tensors_[next_]), tensors_[next_].name, bytes, tensor_bytes(tensors_[next_]));
  ++next_;
  StreamHash own;
  constexpr std::size_t chunk = std::size_t{1} << 20;  // stays in cache for the two hashes and the copy into the page cache
  const char* from = static_cast<const char*>(data);
  for (std::size_t done = 0; done < bytes; done += chunk) {
    if (stop.stop_requested()) throw Error(ExitCode::rank_failed, "the file is given up because the job ends");
    const std::size_t size = std::min(chunk, bytes - done);
    own.update(from + done, size);
    write(from + done, size);
  }
  return own.hex();
}

void SafetensorsWriter::append_part(const void* data, std::size_t bytes) {
  BALEEN_CHECK(next_ < tensors_.size(), "tensors", tensors_.size());
  const std::size_t all = tensor_bytes(tensors_[next_]);
  BALEEN_CHECK(bytes <= all - part_written_, tensors_[next_].name, bytes, part_written_, all);
  if (bytes > 0) write(data, bytes);
  part_written_ += bytes;
  if (part_written_ < all) return;
  part_written_ = 0;
  ++next_;
}

SafetensorsWriter::Result SafetensorsWriter::finish() {
  BALEEN_CHECK(next_ == tensors_.size(), "written", next_, "of", tensors_.size());
  if (care_ == Care::copy) {
    file_.close();
    return {file_.bytes_written(), ""};
  }
  file_.sync_and_close();
  return {file_.bytes_written(), hash_.hex()};
}

void SafetensorsWriter::write(const void* data, std::size_t bytes) {
  if (care_ == Care::checkpoint) hash_.update(data, bytes);
  file_.write(data, bytes);
}

}  // namespace baleen::checkpoint
