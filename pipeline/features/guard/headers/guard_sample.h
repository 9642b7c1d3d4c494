// What session options run once: inputs, and what the desk kept of the outputs. The desk says how near to them they must be.
#pragma once

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "guard_files.h"
#include "guard_inflate.h"

namespace ort_mobile {

class GuardSample {
  public:
    // What outputs with a NaN or an infinity have.
    static constexpr double kLeastDecibels = -999;

    // A sample out of a file that the desk wrote; GuardError for anything else.
    explicit GuardSample(const std::string& data) : data_(data) {
        if (Integer(4) != kMagic || Integer(4) != kVersion) throw GuardError("no sample of this version");
        for (std::size_t count = Count(); count > 0; --count) inputs_.push_back(ReadInput());
        for (std::size_t count = Count(); count > 0; --count) outputs_.push_back(ReadOutput());
        for (std::size_t count = Count(); count > 0; --count) {
            const std::string digests = Text();
            std::vector<double>& least = limits_[digests + "\n" + Text()];
            least.clear();
            for (std::size_t i = 0; i < outputs_.size(); ++i) least.push_back(Real());
        }
    }

    // Runs a session once; what it reaches above what it must, in decibels, of the output that is nearest to its limit.
    double Margin(Ort::Session& session, const std::string& digests, const std::string& way) {
        const std::vector<Ort::Value> results = Run(session);
        auto least = limits_.find(digests + "\n" + way);
        if (least == limits_.end()) least = limits_.find("*\n*");
        double margin = kMostDecibels;
        for (std::size_t i = 0; i < outputs_.size(); ++i)
            margin = std::min(margin, Decibels(outputs_[i], results[i]) - (least == limits_.end() ? 0 : least->second[i]));
        return margin;
    }

    // The seconds of one run.
    double Seconds(Ort::Session& session) {
        const auto start = std::chrono::steady_clock::now();
        Run(session);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }

    // The number of splitmix64 at a place, as the desk makes it.
    static std::uint64_t Mixed(std::uint64_t place, std::uint64_t seed) {
        std::uint64_t state = (place + 1) * 0x9E3779B97F4A7C15u + seed;
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
        state = (state ^ state >> 27) * 0x94D049BB133111EBu;
        return state ^ state >> 31;
    }

  private:
    static constexpr double kMostDecibels = 200;
    static constexpr std::uint64_t kMagic = 0x4f4d5354, kVersion = 1, kMostCount = 4096;
    static constexpr std::size_t kSums = 16, kMostBytes = 64 << 20;

    struct Input {
        std::string name;
        ONNXTensorElementDataType type;
        std::vector<std::int64_t> shape;
        std::string content;
    };
    struct Output {
        std::size_t place, count, step;
        double energy, sums[kSums];
    };

    const char* Bytes(std::size_t count) {
        if (data_.size() - at_ < count) throw GuardError("a sample that ends too early");
        at_ += count;
        return data_.data() + at_ - count;
    }

    // A number in network order.
    std::uint64_t Integer(std::size_t bytes) {
        std::uint64_t number = 0;
        for (const char *byte = Bytes(bytes), *end = byte + bytes; byte < end; ++byte)
            number = number << 8 | static_cast<unsigned char>(*byte);
        return number;
    }

    std::size_t Count() {
        const std::uint64_t count = Integer(4);
        if (count > kMostCount) throw GuardError("a sample with too many parts");
        return static_cast<std::size_t>(count);
    }

    double Real() {
        const std::uint64_t bits = Integer(8);
        double number;
        std::memcpy(&number, &bits, sizeof number);
        return number;
    }

    std::string Text() {
        const std::size_t size = static_cast<std::size_t>(Integer(2));
        return std::string(Bytes(size), size);
    }

    Input ReadInput() {
        static const std::map<std::string, std::pair<ONNXTensorElementDataType, std::size_t>> kTypes = {
            {"FLOAT", {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4}},    {"DOUBLE", {ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8}},
            {"FLOAT16", {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2}}, {"INT8", {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, 1}},
            {"UINT8", {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, 1}},    {"INT16", {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, 2}},
            {"INT32", {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4}},    {"INT64", {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8}},
            {"BOOL", {ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1}}};
        Input input;
        input.name = Text();
        const auto type = kTypes.find(Text());
        if (type == kTypes.end()) throw GuardError("a sample with an input of an unknown type");
        input.type = type->second.first;
        std::uint64_t bytes = type->second.second;
        for (std::size_t rank = Count(); rank > 0; --rank) {
            const std::uint64_t size = Integer(8);
            if (size > kMostBytes) throw GuardError("a sample with an input that is too large");
            input.shape.push_back(static_cast<std::int64_t>(size));
            bytes *= size;
            if (bytes > kMostBytes) throw GuardError("a sample with an input that is too large");
        }
        const std::size_t packed = static_cast<std::size_t>(Integer(4));
        const std::uint64_t seed = Integer(8);
        const double low = Real(), high = Real();
        if (packed > 0) {
            input.content = GuardInflate::Bytes(std::string(Bytes(packed), packed), static_cast<std::size_t>(bytes));
            return input;
        }
        input.content.resize(static_cast<std::size_t>(bytes));
        for (std::size_t i = 0; i < bytes / 4; ++i) {
            const double share = static_cast<double>(Mixed(i, seed) >> 40) / (1 << 24);
            const float value = static_cast<float>(low + (high - low) * share);
            std::memcpy(&input.content[4 * i], &value, 4);
        }
        return input;
    }

    Output ReadOutput() {
        Output output;
        output.place = static_cast<std::size_t>(Integer(4));
        output.count = static_cast<std::size_t>(Integer(4));
        output.step = std::max<std::size_t>(1, static_cast<std::size_t>(Integer(4)));
        output.energy = Real();
        for (double& sum : output.sums) sum = Real();
        return output;
    }

    // The results of the outputs that are compared, in their order.
    std::vector<Ort::Value> Run(Ort::Session& session) {
        const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
        const Ort::AllocatorWithDefaultOptions allocator;
        std::vector<const char*> names, wanted;
        std::vector<Ort::Value> values;
        std::vector<Ort::AllocatedStringPtr> owned;
        for (Input& input : inputs_) {
            names.push_back(input.name.c_str());
            values.push_back(Ort::Value::CreateTensor(
                memory, input.content.data(), input.content.size(), input.shape.data(), input.shape.size(), input.type));
        }
        for (const Output& output : outputs_) {
            owned.push_back(session.GetOutputNameAllocated(output.place, allocator));
            wanted.push_back(owned.back().get());
        }
        return session.Run(
            Ort::RunOptions{nullptr}, names.data(), values.data(), values.size(), wanted.data(), wanted.size());
    }

    static double Decibels(const Output& output, const Ort::Value& result) {
        const Ort::TensorTypeAndShapeInfo info = result.GetTensorTypeAndShapeInfo();
        if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT || info.GetElementCount() != output.count)
            return kLeastDecibels;
        const float* values = result.GetTensorData<float>();
        double found[kSums] = {}, noise = 0;
        for (std::size_t i = 0; i < output.count; ++i) {
            if (!std::isfinite(values[i])) return kLeastDecibels;
            if (i % output.step != 0) continue;
            const std::uint64_t bits = Mixed(i / output.step, 0);
            for (std::size_t j = 0; j < kSums; ++j) found[j] += bits >> j & 1 ? -values[i] : values[i];
        }
        for (std::size_t j = 0; j < kSums; ++j) noise += (found[j] - output.sums[j]) * (found[j] - output.sums[j]) / kSums;
        if (noise == 0) return kMostDecibels;
        return output.energy == 0 ? kLeastDecibels : std::min(kMostDecibels, 10 * std::log10(output.energy / noise));
    }

    std::string data_;
    std::size_t at_ = 0;
    std::vector<Input> inputs_;
    std::vector<Output> outputs_;
    std::map<std::string, std::vector<double>> limits_;
};

}  // namespace ort_mobile
