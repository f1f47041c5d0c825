#include "train/event_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"

namespace baleen {
namespace {

constexpr std::string_view prefix = "events.out.tfevents.", suffix = ".baleen";
constexpr std::size_t frame_bytes = sizeof(std::uint64_t) + 2 * sizeof(std::uint32_t);
constexpr std::size_t time_bytes = 1 + sizeof(double);  // every event of ours begins with its time
constexpr char step_tag = 0x10;                         // field 2 as a varint

// Protocol Buffers' wire format (protobuf.dev/programming-guides/encoding): fields are number << 3 | type, then the value.
enum WireType : unsigned { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);  // little-endian, as this build requires
}
static_assert(std::endian::native == std::endian::little);

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
}
void put_tag(std::string& out, unsigned field, WireType type) {
  put_varint(out, field << 3 | type);
}
void put_bytes(std::string& out, unsigned field, std::string_view content) {
  put_tag(out, field, bytes);
  put_varint(out, content.size());
  out += content;
}

// Event: 1 wall_time, 2 step, 3 file_version, 5 summary. Summary: 1 value. Value: 1 tag, 2 simple_value.
std::string begin_event() {
  std::string event;
  put_tag(event, 1, fixed64);
  put(event, std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  return event;
}

std::uint32_t masked_crc(std::string_view content) {
  const std::uint32_t crc = crc32c(content);
  return std::rotr(crc, 15) + 0xa282ead8u;  // so that a CRC of data that hold CRCs is not special
}

template <class T>
T read(std::string_view content, std::size_t offset) {
  T value;
  std::memcpy(&value, content.data() + offset, sizeof value);
  return value;
}

// The step of an event of ours; 0 for the one with the version.
std::int64_t step_of(std::string_view event) {
  std::uint64_t step = 0;
  if (event.size() <= time_bytes || event[time_bytes] != step_tag) return 0;
  unsigned shift = 0;
  for (std::size_t at = time_bytes + 1; at < event.size() && shift < 64; ++at, shift += 7) {
    step |= std::uint64_t{static_cast<unsigned char>(event[at]) & 0x7fu} << shift;
    if ((event[at] & 0x80) == 0) break;
  }
  return static_cast<std::int64_t>(step);
}

// The data of the record at `offset`; nothing where it is torn or damaged.
std::optional<std::string_view> record_at(std::string_view content, std::size_t offset) {
  const std::string_view rest = content.substr(offset);
  if (rest.size() < frame_bytes) return std::nullopt;
  const auto length = read<std::uint64_t>(rest, 0);
  if (length > rest.size() - frame_bytes || read<std::uint32_t>(rest, 8) != masked_crc(rest.substr(0, 8))) return std::nullopt;
  const std::string_view data = rest.substr(12, length);
  if (read<std::uint32_t>(rest, 12 + length) != masked_crc(data)) return std::nullopt;
  return data;
}

// Steps only grow inside a file, so what must go is its end. A file without scalars goes whole.
void cut_after(const std::filesystem::path& file, std::int64_t last_step) {
  const std::string content = read_file(file, std::size_t{8} << 30);
  std::size_t kept = 0, records = 0;
  for (auto data = record_at(content, 0); data && step_of(*data) <= last_step; data = record_at(content, kept), ++records)
    kept += frame_bytes + data->size();
  std::error_code error;
  if (records <= 1)
    std::filesystem::remove(file, error);
  else if (kept < content.size())
    std::filesystem::resize_file(file, kept, error);
  if (error)
    throw Error(ExitCode::bad_data, "cannot cut off the events of a future that was given up: " + error.message(), file.string(),
                "check the run directory's permissions");
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace

EventLog::EventLog(const std::filesystem::path& folder, std::int64_t last_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw Error(ExitCode::bad_data, "cannot create the folder: " + error.message(), folder.string(),
                "check the run directory's permissions");
  std::vector<std::filesystem::path> earlier;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix)) earlier.push_back(entry.path());
  }
  for (const auto& file : earlier) cut_after(file, last_step);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  path_ = folder / fmt::format("{}{}.{}.{}.{}{}", prefix, seconds, host_name(), getpid(), last_step, suffix);
}

EventLog::~EventLog() {
  if (file_ != nullptr) std::fclose(file_);
}

void EventLog::start_file() {
  file_ = std::fopen(path_.c_str(), "we");
  if (file_ == nullptr)
    throw Error(ExitCode::bad_data, fmt::format("cannot write: {}", std::strerror(errno)), path_.string(),
                "check the run directory's permissions");
  std::string event = begin_event();
  put_bytes(event, 3, "brain.Event:2");
  write_record(event);
}

void EventLog::write_record(const std::string& event) {
  std::string record;
  put(record, std::uint64_t{event.size()});
  put(record, masked_crc(record));
  record += event;
  put(record, masked_crc(event));
  if (std::fwrite(record.data(), 1, record.size(), file_) != record.size() || std::fflush(file_) != 0)
    throw Error(ExitCode::bad_data, fmt::format("cannot write: {}", std::strerror(errno)), path_.string(),
                "free some space; the last checkpoint is safe");
}

void EventLog::write_scalars(std::int64_t step, Scalars scalars) {
  if (file_ == nullptr) start_file();
  std::string summary;
  for (const auto& [name, number] : scalars) {
    std::string value;
    put_bytes(value, 1, name);
    put_tag(value, 2, fixed32);
    put(value, static_cast<float>(number));
    put_bytes(summary, 1, value);
  }
  std::string event = begin_event();
  put_tag(event, 2, varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  put_bytes(event, 5, summary);
  write_record(event);
}

void EventLog::append(const MetricsRow& row) {
  write_scalars(row.step, {{"loss", row.loss},
                           {"grad_norm", row.grad_norm},
                           {"lr", row.lr},
                           {"tokens", static_cast<double>(row.tokens)},
                           {"tokens_per_s", row.tokens_per_s},
                           {"step_ms", row.step_ms},
                           {"model_tflops", row.model_tflops},
                           {"memory_peak_bytes", static_cast<double>(row.memory_peak_bytes)},
                           {"comm_bytes", static_cast<double>(row.comm_bytes)},
                           {"comm_ms", row.comm_ms},
                           {"comm_exposed_ms", row.comm_exposed_ms},
                           {"bubble_fraction", row.bubble_fraction}});
  if (!std::isnan(row.mfu)) write_scalars(row.step, {{"mfu", row.mfu}});
}

void EventLog::append(const ValidationRow& row) {
  write_scalars(row.step, {{"val_loss", row.val_loss}});
  if (!std::isnan(row.bits_per_byte)) write_scalars(row.step, {{"bits_per_byte", row.bits_per_byte}});
}

}  // namespace baleen
