// A GAE of its own on rlscan's conformance vectors: whether it is right, and if not, which mistake it makes.
//
//   c++ -std=c++17 -O2 examples/conformance.cpp -o conformance && ./conformance crosscheck/data/vectors/gae.json
//
// -DREAL=float computes in float32; -DBROKEN takes truncation for termination.
#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>

#include "json.hpp"

#ifndef REAL
#define REAL double
#endif
using Real = REAL;
using Results = std::map<std::string, std::vector<Real>>;

Results gae(const Json& vector) {
  const Json &given = vector["arguments"], &parameters = vector["parameters"];
  const std::vector<Json>& shape = given["rewards"]["shape"].items;
  const int lines = shape.size() > 1 ? int(shape[0].number()) : 1, columns = int(shape.back().number());
  const bool time_major = vector["layout"].text == "time", next_step = parameters["autoreset"].text == "next_step";
  const int steps = time_major ? lines : columns, rows = time_major ? columns : lines;
  // An argument repeated to the shape of the rewards, from the last axis on.
  const auto whole = [&](const std::string& name, Real otherwise) {
    std::vector<Real> all(lines * columns, parameters.has(name) ? Real(parameters[name].number()) : otherwise);
    if (!given.has(name)) return all;
    const std::vector<Json>&own = given[name]["shape"].items, &data = given[name]["data"].items;
    const int height = own.size() > 1 ? int(own[0].number()) : 1, width = own.empty() ? 1 : int(own.back().number());
    for (int i = 0; i < lines * columns; ++i) all[i] = Real(data[(height > 1 ? i / columns * width : 0) + (width > 1 ? i % columns : 0)].number());
    return all;
  };
  const auto rewards = whole("rewards", 0), values = whole("values", 0), terminated = whole("terminated", 0), truncated = whole("truncated", 0),
             next_values = whole("next_values", 0), final_values = whole("final_values", 0), valid = whole("valid", 1), gamma = whole("gamma", 0),
             lam = whole("lam", 0);
  Results results{{"advantages", std::vector<Real>(lines * columns)}, {"returns", std::vector<Real>(lines * columns)}};
  for (int row = 0; row < rows; ++row) {
    const auto place = [&](int t) { return time_major ? t * rows + row : row * steps + t; };
    const auto ended = [&](int t) { return terminated[place(t)] != 0 || truncated[place(t)] != 0; };
    const Real bootstrap = given.has("bootstrap_value") ? Real(given["bootstrap_value"]["data"].items[row].number()) : 0;
    Real advantage = 0, value_behind = bootstrap;
    for (int t = steps - 1; t >= 0; --t) {
      const int i = place(t);
      const bool is_reset = next_step && !given.has("valid") && t > 0 && ended(t - 1);
      if (valid[i] == 0 || is_reset) continue;
      bool is_terminal = terminated[i] != 0;
#ifdef BROKEN
      is_terminal = ended(t);
#endif
      const Real stored_behind = t + 1 < steps ? values[place(t + 1)] : bootstrap;
      const Real cut_off = next_step ? stored_behind : final_values[i];
      const Real successor = given.has("next_values") ? next_values[i] : truncated[i] != 0 ? cut_off : value_behind;
      // What has no weight is not read, for it may be NaN.
      const Real discount = is_terminal ? 0 : gamma[i], trace = ended(t) || discount == 0 ? 0 : discount * lam[i];
      advantage = rewards[i] + (discount == 0 ? 0 : discount * successor) - values[i] + (trace == 0 ? 0 : trace * advantage);
      results["advantages"][i] = advantage;
      results["returns"][i] = advantage + values[i];
      value_behind = values[i];
    }
  }
  return results;
}

bool same(const Json& outputs, const Results& results) {
  for (const auto& [name, output] : outputs.fields) {
    const std::vector<Json>& wanted = output["float64"].items;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double x = results.at(name)[i], y = wanted[i].number();
      const double bound = output.has("bound") ? output["bound"][sizeof(Real) == 4 ? "float32" : "float64"].items[i].number() : 0;
      if (x != y && !(std::isnan(x) && std::isnan(y)) && !(std::abs(x - y) <= bound)) return false;
    }
  }
  return true;
}

int main(int count, char** files) {
  std::vector<Json> vectors;
  std::set<std::string> mistakes;
  for (int file = 1; file < count; ++file) {
    std::ifstream in(files[file]);
    if (!in) {
      std::cerr << files[file] << " can't be read\n";
      return 2;
    }
    const Json document = Json::read(in);
    if (!document.has("vectors")) continue;  // the schema lies beside them
    for (const Json& vector : document["vectors"].items) {
      if (vector["op"].text != "gae") continue;
      vectors.push_back(vector);
      for (const Json& fault : vector["faulty"].items) mistakes.insert(fault["variant"].text);
    }
  }
  int failed = 0;
  for (const Json& vector : vectors) {
    const Results results = gae(vector);
    const bool right = same(vector["expected"], results);
    failed += !right;
    std::cout << (right ? "pass " : "FAIL ") << vector["id"].text << "\n";
    // Who makes a mistake has its results where it is listed, and right ones elsewhere.
    for (auto mistake = mistakes.begin(); mistake != mistakes.end();) {
      const Json* outputs = &vector["expected"];
      for (const Json& fault : vector["faulty"].items)
        if (fault["variant"].text == *mistake) outputs = &fault["outputs"];
      mistake = same(*outputs, results) ? std::next(mistake) : mistakes.erase(mistake);
    }
  }
  std::cout << failed << " of " << vectors.size() << " failed\n";
  for (const std::string& mistake : mistakes) std::cout << "the mistake: " << mistake << "\n";
  return failed > 0 || vectors.empty();
}
