// Work in parallel. Torch's own OpenMP pool is used where Python found it, so that two pools do not fight for the
// cores; else threads are started for the call. Which thread does what never changes a result.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel

// An exception ends the work and leaves here, whichever thread it was thrown in: none may cross the OpenMP library.
template <class F>
static void in_parallel(int64_t tasks, int64_t threads, Parallel parallel, F work) {
    std::atomic<int64_t> next{0};
    std::atomic_flag failed = ATOMIC_FLAG_INIT;
    std::exception_ptr failure;
    auto body = [&] {
        try {
            for (int64_t i; (i = next.fetch_add(1)) < tasks;) work(i);
        } catch (...) {
            next = tasks;
            if (!failed.test_and_set()) failure = std::current_exception();
        }
    };
    threads = std::min(threads, tasks);
    if (threads <= 1) {
        body();
    } else if (parallel) {
        parallel([](void* p) { (*static_cast<decltype(body)*>(p))(); }, &body, static_cast<unsigned>(threads), 0);
    } else {
        std::vector<std::thread> others;
        others.reserve(threads);
        try {
            for (int64_t i = 1; i < threads; i++) others.emplace_back(body);
        } catch (const std::system_error&) {  // no more threads: those that are there do all of it
        }
        body();
        for (std::thread& other : others) other.join();
    }
    if (failure) std::rethrow_exception(failure);
}

// Memory that a thread keeps from call to call.
class Room {
    static constexpr size_t HUGE_PAGE = 1 << 21;
    float* start = nullptr;
    size_t size = 0;

   public:
    ~Room() { std::free(start); }
    float* get(int64_t floats) {
        const size_t bytes = (static_cast<size_t>(floats) * sizeof(float) + HUGE_PAGE) / HUGE_PAGE * HUGE_PAGE;
        if (bytes > size) {
            std::free(start);
            size = 0;
            start = static_cast<float*>(std::aligned_alloc(HUGE_PAGE, bytes));
            if (!start) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE  // one entry for all of it in the processor's table of pages
            madvise(start, bytes, MADV_HUGEPAGE);
#endif
            std::memset(start, 0, bytes);
            size = bytes;
        }
        return start;
    }
};

static inline Room& room_of_this_thread() {
    static thread_local Room room;
    return room;
}
