// As much of JSON as the vectors need: strings have no escapes, and the text is taken to be JSON.
#pragma once
#include <cstdlib>
#include <istream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

struct Json {
  std::string text;                    // of a string, a number, true, false or null
  std::vector<Json> items;             // of an array
  std::map<std::string, Json> fields;  // of an object

  bool has(const std::string& name) const { return fields.count(name) > 0; }
  const Json& operator[](const std::string& name) const { return fields.at(name); }
  // strtod also reads "NaN", "Infinity" and "-Infinity"
  double number() const { return std::strtod(text.c_str(), nullptr); }

  static Json read(std::istream& in) {
    Json json;
    char first = 0;
    if (!(in >> first)) throw std::runtime_error("this is not JSON");
    if (first == '{' || first == '[') {
      const char last = first == '{' ? '}' : ']';
      for (char mark = 0; mark != last;) {
        if ((in >> std::ws).peek() != last) {
          if (first == '[') {
            json.items.push_back(read(in));
          } else {
            const std::string name = read(in).text;
            in >> mark;
            json.fields[name] = read(in);
          }
        }
        if (!(in >> mark)) throw std::runtime_error("this is not JSON");
      }
    } else if (first == '"') {
      std::getline(in, json.text, '"');
    } else {
      json.text = first;
      while (in && std::string(",:]} \n").find(static_cast<char>(in.peek())) == std::string::npos) json.text += static_cast<char>(in.get());
    }
    return json;
  }
};
