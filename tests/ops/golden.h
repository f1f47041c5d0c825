// Reads the golden values that tests/golden/make_ops.py writes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/support.h"

namespace baleen::ops::testing {

class Golden {
 public:
  explicit Golden(std::string op);
  ~Golden();

  Array array(const std::string& name) const;
  std::vector<double> want(const std::string& name) const;
  std::vector<std::int32_t> integers(const std::string& name) const;

 private:
  struct Index;

  template <class Element>
  std::vector<Element> read(const std::string& name, const std::string& dtype) const;

  std::string op_;
  std::unique_ptr<const Index> index_;
  std::string data_;
};

}  // namespace baleen::ops::testing
