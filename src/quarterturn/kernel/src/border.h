// What comes from Python is checked before it is used: lists of numbers go with their length, tensors with their size.
// What does not fit is refused with a status (border.py makes errors of them) and a reason, and nothing is read.
#pragma once
#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <new>
#include <span>
#include <stdexcept>

enum Status : int { FINE, NOT_A_PLAN, WRONG_SIZE, NO_MEMORY, FAILED };

struct Refusal {
    Status status;
    const char* reason;
};

static inline void need(bool holds, const char* reason, Status status = NOT_A_PLAN) {
    if (!holds) throw Refusal{status, reason};
}

static thread_local char last_reason[256] = "";  // of the last call of this thread that was refused

static inline int refused(Status status, const char* reason) {
    std::snprintf(last_reason, sizeof last_reason, "%s", reason);
    return status;
}

// Run f; no exception crosses the border.
template <class F>
static int guarded(F f) {
    try {
        f();
        return FINE;
    } catch (const Refusal& refusal) {
        return refused(refusal.status, refusal.reason);
    } catch (const std::bad_alloc&) {
        return refused(NO_MEMORY, "");
    } catch (const std::length_error&) {  // a vector of more than any memory holds
        return refused(NO_MEMORY, "");
    } catch (const std::exception& error) {
        return refused(FAILED, error.what());
    } catch (...) {
        return refused(FAILED, "an exception without a name");
    }
}

// A product of sizes that does not overflow.
static inline int64_t product(std::initializer_list<int64_t> sizes) {
    int64_t all = 1;
    for (int64_t size : sizes) need(!__builtin_mul_overflow(all, size, &all), "its sizes overflow");
    return all;
}

static inline void need_size(int64_t came, int64_t wanted, const char* reason) {
    need(came == wanted, reason, WRONG_SIZE);
}

// Numbers from Python, taken one after the other, each within its limits.
class Numbers {
    static constexpr int64_t LARGEST = (int64_t{1} << 31) - 1;  // two products of two of them do not overflow in sum
    std::span<const int64_t> left;

   public:
    explicit Numbers(std::span<const int64_t> numbers) : left(numbers) {}
    int64_t between(int64_t low, int64_t high, const char* reason) {
        const int64_t number = *take(1);
        need(low <= number && number <= high, reason);
        return number;
    }
    int64_t size(const char* reason, int64_t least = 0) { return between(least, LARGEST, reason); }
    int64_t position(const char* reason) { return between(-LARGEST, LARGEST, reason); }
    const int64_t* take(int64_t count) {
        need(count <= static_cast<int64_t>(left.size()), "it is too short");
        const int64_t* first = left.data();
        left = left.subspan(count);
        return first;
    }
    void end() const { need(left.empty(), "it is too long"); }
};
