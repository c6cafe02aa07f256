/* Tests of fl_pages (memory for batches) and fl_safe_read (copies from memory that may vanish). */
#include "check.h"

#include "fl_safe_read.h"
#include "fl_pages.h"

#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>

enum { MIB = 1 << 20, PAGE = 4096, FENCE = 64, FENCE_BYTE = 0x3C, MARK_ERRNO = 4242 };

/* ---- pages */

static void test_open_gives_aligned_memory(void)
{
    const int64_t sizes[] = {0,   1,       63,          64,      65,      4096,          MIB - 1,
                             MIB, MIB + 1, 2 * MIB - 1, 2 * MIB, 5 * MIB, 5 * MIB + 4097};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fl_pages pages;
        CHECK_INT(fl_pages_open(sizes[i], &pages, NULL), FL_OK);
        CHECK(pages.data != NULL && pages.capacity >= sizes[i]);
        CHECK(pages.is_mapped == (sizes[i] >= FL_PAGES_MAPPED_FROM));
        CHECK(is_aligned(pages.data, pages.is_mapped ? 2 * MIB : 64));
        memset(pages.data, 0x77, (size_t)pages.capacity); /* the caller may write every byte */
        fl_pages_close(&pages);
        CHECK(pages.data == NULL && pages.capacity == 0 && !pages.is_mapped);
        fl_pages_close(&pages);
    }
}

static void test_map_shares_no_page(void)
{
    const int64_t sizes[] = {0, 1, PAGE, PAGE + 1, 5 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fl_pages pages;
        CHECK_INT(fl_pages_map(sizes[i], &pages, NULL), FL_OK);
        CHECK(pages.is_mapped && is_aligned(pages.data, PAGE));
        CHECK(pages.capacity >= sizes[i] && pages.capacity > 0 && pages.capacity % PAGE == 0);
        memset(pages.data, 0x77, (size_t)pages.capacity);
        fl_pages_close(&pages);
    }
}

static void test_open_refused_leaves_zeroes(void)
{
    const int64_t sizes[] = {0, 1000, MIB, 5 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fl_pages pages = {.data = (char *)&pages, .capacity = 7, .is_mapped = true};
        fl_err err = {0};
        fl_fault_arm(1);
        CHECK_INT(fl_pages_open(sizes[i], &pages, &err), FL_ENOMEM);
        fl_fault_arm(0);
        CHECK(pages.data == NULL && pages.capacity == 0 && !pages.is_mapped);
        CHECK(err.code == FL_ENOMEM && err.text[0] != '\0');
    }
}

static void test_open_of_an_absurd_size_fails(void)
{
    const int64_t sizes[] = {(int64_t)1 << 62, INT64_MAX - 2 * MIB, INT64_MAX - 1, INT64_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fl_pages pages;
        fl_err err = {0};
        int status = fl_pages_open(sizes[i], &pages, &err);
        CHECK(status < 0 && err.code == status && err.text[0] != '\0');
        CHECK(pages.data == NULL && pages.capacity == 0);
        CHECK_INT(fl_pages_open(sizes[i], &pages, NULL), status);
    }
}

/* The kernel would map this size, and end the process while the mapping is filled. */
static void test_open_of_more_than_the_machine_has_fails(void)
{
    struct sysinfo info;
    CHECK(sysinfo(&info) == 0);
    int64_t total = (int64_t)((info.totalram + info.totalswap) * info.mem_unit);
    fl_pages pages;
    fl_err err = {0};
    CHECK_INT(fl_pages_open(total + PAGE, &pages, &err), FL_ENOMEM);
    CHECK(pages.data == NULL && strstr(err.text, "smaller batch_size") != NULL);
    CHECK_INT(fl_pages_map(total + PAGE, &pages, NULL), FL_ENOMEM);
    CHECK_INT(fl_pages_open(total / 2, &pages, NULL), FL_OK);
    fl_pages_close(&pages);
}

/* Address space of this process. */
static int64_t mapped_bytes(void)
{
    FILE *statm = fopen("/proc/self/statm", "r");
    long long pages = 0;
    CHECK(statm != NULL && fscanf(statm, "%lld", &pages) == 1);
    fclose(statm);
    return pages * sysconf(_SC_PAGESIZE);
}

static void test_close_gives_all_of_it_back(void)
{
    int64_t before = mapped_bytes();
    for (int i = 0; i < 200; i++) {
        fl_pages pages;
        CHECK_INT(fl_pages_open(5 * MIB + 1, &pages, NULL), FL_OK);
        fl_pages_close(&pages);
    }
    CHECK(mapped_bytes() - before < 100 * MIB);
}

static int64_t resident_pages(char *data, int64_t bytes)
{
    unsigned char states[5 * MIB / PAGE];
    CHECK(bytes / PAGE <= (int64_t)sizeof states && mincore(data, (size_t)bytes, states) == 0);
    int64_t found = 0;
    for (int64_t i = 0; i < bytes / PAGE; i++) found += states[i] & 1;
    return found;
}

static void test_populate_makes_pages_present(void)
{
    fl_pages pages;
    CHECK_INT(fl_pages_open(5 * MIB, &pages, NULL), FL_OK);
    pages.data[MIB + 5] = 42;
    errno = MARK_ERRNO;
    bool is_done = fl_pages_populate(pages.data + MIB + 5, 2 * MIB + 1); /* not page-aligned */
    CHECK_INT(errno, MARK_ERRNO);
    if (is_done) CHECK_INT(resident_pages(pages.data + MIB, 2 * MIB + PAGE), 2 * MIB / PAGE + 1);
    CHECK(pages.data[MIB + 5] == 42 && pages.data[3 * MIB] == 0);
    fl_pages_close(&pages);
}

static void test_populate_is_only_advice(void)
{
    fl_pages small;
    CHECK_INT(fl_pages_open(100, &small, NULL), FL_OK);
    memset(small.data, 9, 100);
    CHECK(fl_pages_populate(small.data, 0));
    CHECK(fl_pages_populate(small.data, -1));
    (void)fl_pages_populate(small.data + 1, 99);
    for (int i = 0; i < 100; i++) CHECK(small.data[i] == 9);
    fl_pages_close(&small);

    char *closed = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(closed != MAP_FAILED);
    errno = MARK_ERRNO;
    CHECK(!fl_pages_populate(closed, PAGE));
    CHECK_INT(errno, MARK_ERRNO);
    munmap(closed, PAGE);
}

/* ---- guard */

typedef int64_t guard_fn(char *dst, const struct iovec *pieces, int count);

static guard_fn *const guards[] = {fl_safe_read_copy, fl_safe_read_copy_memfd};
enum { GUARDS = sizeof guards / sizeof *guards };

static int64_t sum_lengths(const struct iovec *pieces, int count)
{
    int64_t sum = 0;
    for (int i = 0; i < count; i++) sum += (int64_t)pieces[i].iov_len;
    return sum;
}

/* Copies readable pieces, and compares with memcpy. */
static void check_whole_copy(guard_fn *guard, const struct iovec *pieces, int count)
{
    int64_t bytes = sum_lengths(pieces, count), at = 0;
    char *dst = malloc((size_t)bytes + FENCE);
    CHECK(dst != NULL);
    memset(dst, FENCE_BYTE, (size_t)bytes + FENCE);
    errno = MARK_ERRNO;
    CHECK_INT(guard(dst, pieces, count), bytes);
    if (guard == fl_safe_read_copy) CHECK_INT(errno, MARK_ERRNO);
    for (int i = 0; i < count; i++) {
        CHECK(memcmp(dst + at, pieces[i].iov_base, pieces[i].iov_len) == 0);
        at += (int64_t)pieces[i].iov_len;
    }
    for (int i = 0; i < FENCE; i++) CHECK(dst[bytes + i] == FENCE_BYTE);
    free(dst);
}

static void *copy_something(void *arg)
{
    char from[100], to[100];
    memset(from, 1, sizeof from);
    memset(to, 0, sizeof to);
    struct iovec piece = {.iov_base = from, .iov_len = sizeof from};
    CHECK_INT(fl_safe_read_copy(to, &piece, 1), sizeof from);
    CHECK(memcmp(from, to, sizeof from) == 0);
    *(const char **)arg = fl_safe_read_method();
    return NULL;
}

/* No thread knows yet how this machine copies. */
static void test_guard_threads_find_one_method(void)
{
    pthread_t threads[4];
    const char *found[4];
    for (int i = 0; i < 4; i++)
        CHECK_INT(fl_thread_start(&threads[i], copy_something, &found[i], NULL), FL_OK);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++) CHECK(strcmp(found[i], found[0]) == 0);
    CHECK(strcmp(found[0], "process_vm") == 0 || strcmp(found[0], "memfd") == 0);
}

static void test_guard_copies_every_count_and_length(void)
{
    const int counts[] = {1, 2, 3, 17, 255, FL_SAFE_READ_MAX};
    const int64_t lengths[] = {0, 1, 3, 64, 4095, 4096, 4097, 65535, 65536, 300000};
    uint64_t seed = 1;
    char *source = malloc(MIB);
    CHECK(source != NULL);
    fill_random(&seed, source, MIB);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            if (counts[c] * lengths[l] > 8 * MIB) continue;
            struct iovec pieces[FL_SAFE_READ_MAX];
            for (int i = 0; i < counts[c]; i++)
                pieces[i] = (struct iovec){source + random_below(&seed, MIB - lengths[l] + 1),
                                           (size_t)lengths[l]};
            for (int g = 0; g < GUARDS; g++) check_whole_copy(guards[g], pieces, counts[c]);
        }
    }
    free(source);
}

static void test_guard_copies_mixed_lengths(void)
{
    uint64_t seed = 2;
    char *source = malloc(MIB);
    CHECK(source != NULL);
    fill_random(&seed, source, MIB);
    for (int round = 0; round < 40; round++) {
        struct iovec pieces[FL_SAFE_READ_MAX];
        int count = 1 + (int)random_below(&seed, 40);
        int64_t longest = (int64_t)1 << random_below(&seed, 19);
        for (int i = 0; i < count; i++) {
            int64_t length = random_below(&seed, longest + 1);
            pieces[i] =
                (struct iovec){source + random_below(&seed, MIB - length + 1), (size_t)length};
        }
        for (int g = 0; g < GUARDS; g++) check_whole_copy(guards[g], pieces, count);
    }
    free(source);
}

/* Cuts a mapped file of `pages` pages after page `kept`, then copies pieces of `length` that follow
 * each other from `start` on: the count must end inside the first piece that is not whole. */
static void check_cut_file(guard_fn *guard, int flags, int64_t pages, int64_t kept, int64_t start,
                           int64_t length)
{
    uint64_t seed = (uint64_t)(kept + length);
    int64_t bytes = pages * PAGE, count = fl_min(FL_SAFE_READ_MAX, (bytes - start) / length);
    char *content = malloc((size_t)bytes), *dst = malloc((size_t)bytes);
    CHECK(content != NULL && dst != NULL);
    fill_random(&seed, content, bytes);
    mapped_file file = map_file(content, bytes, flags);
    CHECK(file.data[0] == content[0] && ftruncate(file.fd, kept * PAGE) == 0);

    struct iovec pieces[FL_SAFE_READ_MAX];
    for (int64_t i = 0; i < count; i++)
        pieces[i] = (struct iovec){file.data + start + i * length, (size_t)length};
    errno = MARK_ERRNO;
    int64_t got = guard(dst, pieces, (int)count);
    if (guard == fl_safe_read_copy) CHECK_INT(errno, MARK_ERRNO);
    int64_t readable = fl_max(0, kept * PAGE - start);
    CHECK(got >= 0 && got < count * length && got <= readable);
    CHECK_INT(got / length, readable / length);
    CHECK(memcmp(dst, content + start, (size_t)got) == 0);
    unmap_file(&file);
    free(content);
    free(dst);
}

static void test_guard_survives_a_cut_file(void)
{
    const int flags[] = {MAP_SHARED, MAP_PRIVATE};
    for (int g = 0; g < GUARDS; g++) {
        for (int f = 0; f < 2; f++) {
            check_cut_file(guards[g], flags[f], 16, 9, 0, 1000);
            check_cut_file(guards[g], flags[f], 16, 9, 0, PAGE);
            check_cut_file(guards[g], flags[f], 16, 9, 0, 3 * PAGE);
            check_cut_file(guards[g], flags[f], 16, 9, 9 * PAGE - 999, 1000);
            check_cut_file(guards[g], flags[f], 16, 1, 17, 300);
            check_cut_file(guards[g], flags[f], 16, 0, 0, 1000);
            check_cut_file(guards[g], flags[f], 128, 100, 0, 16 * PAGE);
            check_cut_file(guards[g], flags[f], 128, 100, 5, 70000);
            check_cut_file(guards[g], flags[f], 128, 3, 0, 70000);
            check_cut_file(guards[g], flags[f], 128, 0, 0, 70000);
            check_cut_file(guards[g], flags[f], 512, 384, 0, 600000);
        }
    }
}

static void test_guard_reads_on_where_the_cut_is_not(void)
{
    char content[4 * PAGE], dst[2 * PAGE];
    uint64_t seed = 3;
    fill_random(&seed, content, sizeof content);
    mapped_file file = map_file(content, sizeof content, MAP_SHARED);
    CHECK(ftruncate(file.fd, 2 * PAGE) == 0);
    struct iovec pieces[] = {
        {file.data + PAGE, PAGE}, {file.data + 3 * PAGE, 10}, {file.data, PAGE}};
    for (int g = 0; g < GUARDS; g++) {
        CHECK_INT(guards[g](dst, pieces, 3), PAGE); /* not the third */
        CHECK(memcmp(dst, content + PAGE, PAGE) == 0);
        pieces[1].iov_len = 0; /* nothing is asked of the missing page */
        CHECK_INT(guards[g](dst, pieces, 3), 2 * PAGE);
        CHECK(memcmp(dst + PAGE, content, PAGE) == 0);
        pieces[1].iov_len = 10;
    }
    unmap_file(&file);
}

static int open_files(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir != NULL);
    while (readdir(dir) != NULL) count++;
    closedir(dir);
    return count;
}

static void test_guard_memfd_refused(void)
{
    char from[10] = "123456789", to[10] = {0};
    struct iovec piece = {from, sizeof from};
    fl_fault_arm(1);
    CHECK_INT(fl_safe_read_copy_memfd(to, &piece, 1), FL_ENOMEM);
    fl_fault_arm(0);
    CHECK(to[0] == 0);
    CHECK_INT(fl_safe_read_copy_memfd(to, &piece, 1), sizeof from);
}

static void test_guard_leaves_nothing_open(void)
{
    char from[10] = "123456789", to[10];
    struct iovec pieces[] = {{from, sizeof from}, {NULL, 10}}; /* the second cannot be read */
    int files = open_files();
    int64_t mapped = mapped_bytes();
    for (int i = 0; i < 400; i++)
        for (int g = 0; g < GUARDS; g++) CHECK_INT(guards[g](to, pieces, 2), sizeof from);
    CHECK_INT(open_files(), files);
    CHECK(mapped_bytes() - mapped < 50 * MIB);
}

/* Forbids process_vm_readv and writev to this process, like some sandboxes do. */
static bool enter_sandbox(void)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_writev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof steps / sizeof *steps, .filter = steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

enum { NO_SANDBOX = 77 };

static int copy_in_a_sandbox(void *arg)
{
    (void)arg;
    if (!enter_sandbox()) return NO_SANDBOX;
    char from[10] = "123456789", to[10] = {0};
    struct iovec piece = {from, sizeof from};
    CHECK(strcmp(fl_safe_read_method(), "memfd") == 0);
    fl_fault_arm(1);
    errno = MARK_ERRNO;
    CHECK_INT(fl_safe_read_copy(to, &piece, 1), FL_ENOMEM);
    fl_fault_arm(0);
    CHECK_INT(errno, MARK_ERRNO);
    test_guard_copies_mixed_lengths();
    test_guard_survives_a_cut_file();
    test_guard_reads_on_where_the_cut_is_not();
    return 0;
}

/* This test runs first: the child must find out for itself how it copies. */
static void test_guard_copies_in_a_sandbox(void)
{
    int status = run_child(copy_in_a_sandbox, NULL);
    CHECK(status == 0 || status == NO_SANDBOX);
    if (status == NO_SANDBOX) printf(" (skipped: this kernel has no seccomp)");
}

/* Sanitizers have an allocator of their own, and fault in pages of their own. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
enum { WRITTEN = 4 * MIB, NOT_POPULATED = 7 };

static long count_faults(void)
{
    struct rusage used;
    CHECK(getrusage(RUSAGE_SELF, &used) == 0);
    return used.ru_minflt;
}

static int write_populated(void *shared)
{
    volatile char *data = shared;
    errno = MARK_ERRNO;
    bool is_done = fl_pages_populate_shared((char *)shared + 5, WRITTEN - 5);
    CHECK_INT(errno, MARK_ERRNO);
    long before = count_faults();
    for (int64_t i = 0; i < WRITTEN; i += PAGE) data[i]++;
    if (!is_done) return NOT_POPULATED;
    return count_faults() - before < WRITTEN / PAGE / 8 ? 0 : 1;
}

/* A child stands for a new worker: it populates memory that its parent has written to. */
static void test_populate_of_shared_memory_spares_write_faults(void)
{
    char *shared = mmap(NULL, WRITTEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    memset(shared, 1, WRITTEN);
    int status = run_child(write_populated, shared);
    CHECK(status == 0 || status == NOT_POPULATED);
    for (int64_t i = 0; i < WRITTEN; i++) CHECK(shared[i] == (i % PAGE == 0 ? 2 : 1));
    munmap(shared, WRITTEN);
}

static int map_under_limit(void *resource)
{
    long pages = 0;
    FILE *sizes = fopen("/proc/self/statm", "r");
    CHECK(sizes != NULL && fscanf(sizes, "%ld", &pages) == 1);
    fclose(sizes);
    const rlim_t most = (rlim_t)(pages * sysconf(_SC_PAGESIZE) + 240 * MIB);
    CHECK(setrlimit(*(const int *)resource, &(struct rlimit){most, most}) == 0);
    fl_pages_keep_heap(true);
    void *mapped =
        mmap(NULL, 100 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mapped != MAP_FAILED ? 0 : 1;
}

/* Before the heap of this process is large. */
static void test_a_limited_heap_leaves_room_for_mappings(void)
{
    int limits[] = {RLIMIT_AS, RLIMIT_DATA};
    for (int i = 0; i < 2; i++) CHECK(run_child(map_under_limit, &limits[i]) == 0);
}

/* The samples of a batch are freed together, and the next batch needs as much. */
static void test_the_heap_keeps_what_a_batch_has_freed(void)
{
    enum { PIECES = 150 };
    void *pieces[PIECES];
    fl_pages_keep_heap(false);
    for (int i = 0; i < PIECES; i++) CHECK((pieces[i] = malloc(MIB)) != NULL);
    const void *end = sbrk(0);
    for (int i = 0; i < PIECES; i++) free(pieces[i]);
    CHECK(sbrk(0) == end);
}

/* Returns how many bytes of the heap the system was asked to put into huge pages. */
static int64_t heap_with_huge_pages(void)
{
    char line[256];
    unsigned long long begin, end;
    int64_t bytes = 0, sum = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%llx-%llx ", &begin, &end) == 2)
            bytes = strstr(line, "[heap]") != NULL ? (int64_t)(end - begin) : 0;
        else if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " hg") != NULL)
            sum += bytes;
    }
    fclose(maps);
    return sum;
}

static int ask_for_huge_pages(void *unused)
{
    (void)unused;
    fl_pages_keep_heap(false);
    if (heap_with_huge_pages() != 0) return 1;
    fl_pages_keep_heap(true);
    return heap_with_huge_pages() > 190 * MIB ? 0 : 2;
}

/* In a child, because the heap keeps them. */
static void test_the_heap_of_a_worker_has_huge_pages(void)
{
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0)
        CHECK(run_child(ask_for_huge_pages, NULL) == 0);
    else
        printf(" (skipped: this kernel has no huge pages)");
}
#endif

int main(void)
{
    start_tests();
    RUN(test_guard_copies_in_a_sandbox);
    RUN(test_guard_threads_find_one_method);
    RUN(test_guard_copies_every_count_and_length);
    RUN(test_guard_copies_mixed_lengths);
    RUN(test_guard_survives_a_cut_file);
    RUN(test_guard_reads_on_where_the_cut_is_not);
    RUN(test_guard_memfd_refused);
    RUN(test_guard_leaves_nothing_open);
    RUN(test_open_gives_aligned_memory);
    RUN(test_map_shares_no_page);
    RUN(test_open_refused_leaves_zeroes);
    RUN(test_open_of_an_absurd_size_fails);
    RUN(test_open_of_more_than_the_machine_has_fails);
    RUN(test_close_gives_all_of_it_back);
    RUN(test_populate_makes_pages_present);
    RUN(test_populate_is_only_advice);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    RUN(test_populate_of_shared_memory_spares_write_faults);
    RUN(test_a_limited_heap_leaves_room_for_mappings);
    RUN(test_the_heap_keeps_what_a_batch_has_freed);
    RUN(test_the_heap_of_a_worker_has_huge_pages);
#endif
    return 0;
}
