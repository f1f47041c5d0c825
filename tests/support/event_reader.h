// Reads TensorBoard's event files, by a way of its own: the CRC bit by bit, messages field by field whatever their order.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baleen::testing {

struct EventFile {
  std::string version;                                            // of the first event
  std::map<std::pair<std::string, std::int64_t>, float> scalars;  // by tag and step
  std::vector<double> wall_times;
};

namespace event_reader {

inline std::uint32_t masked_crc(std::string_view bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1u) != 0 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

struct Field {
  unsigned number = 0, type = 0;
  std::uint64_t value = 0;  // varint, fixed64, fixed32
  std::string_view bytes;
};

inline std::uint64_t varint(std::string_view& rest) {
  std::uint64_t value = 0;
  for (unsigned shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(rest.at(0));
    rest.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

inline std::vector<Field> fields_of(std::string_view message) {
  std::vector<Field> fields;
  while (!message.empty()) {
    const std::uint64_t key = varint(message);
    Field field{static_cast<unsigned>(key >> 3), static_cast<unsigned>(key & 7u), 0, {}};
    std::size_t length = field.type == 1 ? 8 : field.type == 5 ? 4 : 0;
    if (field.type == 0) field.value = varint(message);
    if (field.type == 2) length = varint(message);
    if (length > message.size()) throw std::runtime_error("a field ends behind its message");
    field.bytes = message.substr(0, length);
    if (field.type == 1 || field.type == 5) std::memcpy(&field.value, field.bytes.data(), length);
    message.remove_prefix(length);
    fields.push_back(field);
  }
  return fields;
}

}  // namespace event_reader

// Throws where anything is not as TensorBoard expects it.
inline EventFile read_event_file(const std::filesystem::path& path) {
  using event_reader::fields_of;
  std::ifstream stream(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(stream), {}};
  EventFile file;
  std::string_view rest = content;
  while (!rest.empty()) {
    std::uint64_t length = 0;
    std::uint32_t length_crc = 0, data_crc = 0;
    std::memcpy(&length, rest.substr(0, 8).data(), 8);
    std::memcpy(&length_crc, rest.substr(8, 4).data(), 4);
    if (length_crc != event_reader::masked_crc(rest.substr(0, 8))) throw std::runtime_error("wrong CRC of a length");
    const std::string_view event = rest.substr(12, length);
    std::memcpy(&data_crc, rest.substr(12 + length, 4).data(), 4);
    if (data_crc != event_reader::masked_crc(event)) throw std::runtime_error("wrong CRC of an event");
    rest.remove_prefix(16 + length);
    std::int64_t step = 0;
    for (const auto& field : fields_of(event)) {
      if (field.number == 1 && field.type == 1) file.wall_times.push_back(std::bit_cast<double>(field.value));
      if (field.number == 2 && field.type == 0) step = static_cast<std::int64_t>(field.value);
      if (field.number == 3) file.version = field.bytes;
      if (field.number != 5) continue;
      for (const auto& value : fields_of(field.bytes)) {
        std::string tag;
        for (const auto& part : fields_of(value.bytes)) {
          if (part.number == 1) tag = part.bytes;
          if (part.number == 2 && part.type == 5) file.scalars[{tag, step}] = std::bit_cast<float>(static_cast<std::uint32_t>(part.value));
        }
      }
    }
  }
  return file;
}

// All files of a run's folder of events together.
inline EventFile read_events(const std::filesystem::path& folder) {
  EventFile all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const EventFile file = read_event_file(entry.path());
    all.version = file.version;
    for (const auto& [key, value] : file.scalars)
      if (!all.scalars.emplace(key, value).second) throw std::runtime_error("two values of " + key.first);
    all.wall_times.insert(all.wall_times.end(), file.wall_times.begin(), file.wall_times.end());
  }
  return all;
}

}  // namespace baleen::testing
