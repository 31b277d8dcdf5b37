// Work in parallel. Torch's own OpenMP pool is used where Python found it, so that two pools do not fight for the
// cores; else threads are started for the call. Which thread does what never changes a result.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel

template <class F>
static void in_parallel(int64_t tasks, int64_t threads, Parallel parallel, F work) {
    std::atomic<int64_t> next{0};
    auto body = [&] {
        for (int64_t i; (i = next.fetch_add(1)) < tasks;) work(i);
    };
    threads = std::min(threads, tasks);
    if (threads <= 1) {
        body();
    } else if (parallel) {
        parallel([](void* p) { (*static_cast<decltype(body)*>(p))(); }, &body, static_cast<unsigned>(threads), 0);
    } else {
        std::vector<std::thread> others;
        for (int64_t i = 1; i < threads; i++) others.emplace_back(body);
        body();
        for (std::thread& other : others) other.join();
    }
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
