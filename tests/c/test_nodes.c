/* Tests of where memory of batches lies on a machine of several nodes. The tests count the calls
 * that the kernel gets, and ask the kernel for the policy of the memory; a machine with one node
 * knows policies as well. */
#include "arena_fixture.h"
#include "pool_fixture.h"

#include "fl_pages.h"

#include <dlfcn.h>
#include <linux/mempolicy.h>
#include <stdarg.h>
#include <sys/syscall.h>

enum { BOTH = 3, FIRST = 1 };

static int calls, binds; /* calls about policies, and calls that set one */
static int refused;      /* the errno of all these calls; 0: the kernel answers */

/* Takes the place of the C library's function. */
long syscall(long number, ...)
{
    static long (*kernel)(long, ...);
    if (kernel == NULL) *(void **)&kernel = dlsym(RTLD_NEXT, "syscall");
    int count = number == SYS_mbind ? 6 : number == SYS_get_mempolicy ? 5 : 3;
    long values[6] = {0};
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < count; i++) values[i] = va_arg(rest, long);
    va_end(rest);
    bool is_about_policies = number == SYS_mbind || number == SYS_get_mempolicy;
    calls += is_about_policies;
    binds += number == SYS_mbind;
    if (is_about_policies && refused != 0) {
        errno = refused;
        return -1;
    }
    return kernel(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}

static void check_calls(int expected)
{
    CHECK_INT(binds, expected);
    binds = 0;
}

/* Checks the policy of the page at `data`. */
static void check_policy(const char *data, int expected)
{
    int mode = -1;
    uint64_t nodes = 0;
    CHECK_INT(syscall(SYS_get_mempolicy, &mode, &nodes, 64L, data, (long)MPOL_F_ADDR), 0);
    CHECK_INT(mode, expected);
}

static void test_pages_are_placed_by_one_call(void)
{
    fl_pages pages;
    CHECK_INT(fl_pages_map(1 << 20, &pages, NULL), FL_OK);
    calls = 0;
    fl_pages_place(pages.data, pages.capacity, 0);
    CHECK_INT(calls, 0);
    check_policy(pages.data, MPOL_DEFAULT);
    binds = 0;
    fl_pages_place(pages.data, pages.capacity, BOTH); /* the kernel takes the nodes that exist */
    check_calls(1);
    check_policy(pages.data, MPOL_INTERLEAVE);
    check_policy(pages.data + pages.capacity - 1, MPOL_INTERLEAVE);
    fl_pages_place(pages.data, pages.capacity, FIRST);
    check_policy(pages.data, MPOL_PREFERRED);
    memset(pages.data, 1, (size_t)pages.capacity);
    fl_pages_close(&pages);
}

/* Places slots of a pool, and checks the calls for two small slots and two large ones. */
static void check_slots(fl_pool *pool, uint64_t nodes, int small, int large, int policy)
{
    fl_pool_place(pool, nodes);
    binds = 0;
    fl_slot *slots[4];
    for (int i = 0; i < 2; i++) slots[i] = get_slot(pool, 1000);
    check_calls(small);
    for (int i = 2; i < 4; i++) slots[i] = get_slot(pool, 4 << 20);
    check_calls(large);
    check_policy(fl_slot_data(slots[3]), policy);
    for (int i = 0; i < 4; i++) fl_slot_return(slots[i]);
    fl_slot_return(get_slot(pool, 4 << 20)); /* a slot that is used again is not placed again */
    check_calls(0);
}

static fl_pool *open_for_device(fl_arena *arena)
{
    fl_pool *pool;
    CHECK_INT(fl_pool_open(8, arena, &pool, NULL), FL_OK);
    fl_pool_reserve(pool, 8);
    return pool;
}

static int pin(int32_t device, char *memory, int64_t bytes, fl_err *err)
{
    (void)device, (void)memory, (void)bytes, (void)err;
    return FL_OK;
}

static void unpin(int32_t device, char *memory) { (void)device, (void)memory; }

static void test_mapped_slots_are_placed_once(void)
{
    fl_pool *pool = open_for_device(NULL);
    check_slots(pool, BOTH, 0, 2, MPOL_INTERLEAVE); /* small slots lie in the heap */
    fl_pool_close(pool);
    pool = open_for_device(NULL);
    fl_pool_pin(pool, (fl_pinner){pin, unpin, 0});
    check_slots(pool, FIRST, 2, 2, MPOL_PREFERRED);
    fl_pool_close(pool);
}

static void test_slots_without_nodes_cost_no_call(void)
{
    fl_pool *pool = open_for_device(NULL);
    fl_pool_pin(pool, (fl_pinner){pin, unpin, 0});
    calls = 0;
    fl_slot *slot = get_slot(pool, 4 << 20);
    CHECK_INT(calls, 0);
    check_policy(fl_slot_data(slot), MPOL_DEFAULT);
    fl_slot_return(slot);
    fl_pool_close(pool);
}

static void test_slots_of_an_arena_lie_as_the_arena_lies(void)
{
    fl_arena *arena = open_arena(64 << 20);
    binds = 0;
    fl_pages_place(fl_arena_base(arena), fl_arena_bytes(arena), BOTH);
    check_calls(1);
    fl_pool *pool = open_for_device(arena);
    check_slots(pool, FIRST, 0, 0, MPOL_INTERLEAVE);
    /* The policy belongs to the file: a process that attaches has the policy, too. */
    char *attached;
    CHECK_INT(fl_arena_attach(fl_arena_fd(arena), MIB, &attached, NULL), FL_OK);
    check_policy(attached, MPOL_INTERLEAVE);
    munmap(attached, MIB);
    fl_pool_close(pool);
    fl_arena_close(arena);
}

static void test_memory_serves_where_policies_are_refused(void)
{
    const int errors[] = {EPERM, EINVAL, ENOSYS, ENOMEM};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        refused = errors[i];
        fl_pages pages;
        CHECK_INT(fl_pages_map(1 << 20, &pages, NULL), FL_OK);
        fl_pages_place(pages.data, pages.capacity, BOTH);
        memset(pages.data, 1, (size_t)pages.capacity);
        fl_pages_close(&pages);
    }
    refused = 0;
}

static void test_nodes_that_do_not_exist_are_ignored(void)
{
    fl_pages pages;
    CHECK_INT(fl_pages_map(1 << 20, &pages, NULL), FL_OK);
    fl_pages_place(pages.data, pages.capacity, (uint64_t)1 << 63);
    check_policy(pages.data, MPOL_DEFAULT);
    memset(pages.data, 1, (size_t)pages.capacity);
    fl_pages_close(&pages);
}

static void test_a_policy_of_the_program_stands(void)
{
    uint64_t nodes = FIRST;
    CHECK_INT(syscall(SYS_set_mempolicy, (long)MPOL_BIND, &nodes, 65L), 0);
    fl_pool *pool = open_for_device(NULL);
    check_slots(pool, BOTH, 0, 0, MPOL_DEFAULT); /* so the policy of the thread counts */
    fl_pool_close(pool);
    CHECK_INT(syscall(SYS_set_mempolicy, (long)MPOL_DEFAULT, NULL, 0L), 0);
}

int main(void)
{
    start_tests();
    RUN(test_memory_serves_where_policies_are_refused);
    int mode;
    if (syscall(SYS_get_mempolicy, &mode, NULL, 0L, NULL, 0L) != 0) {
        printf("(the other tests need a system that takes policies)\n");
        return 0;
    }
    RUN(test_pages_are_placed_by_one_call);
    RUN(test_mapped_slots_are_placed_once);
    RUN(test_slots_without_nodes_cost_no_call);
    RUN(test_slots_of_an_arena_lie_as_the_arena_lies);
    RUN(test_nodes_that_do_not_exist_are_ignored);
    RUN(test_a_policy_of_the_program_stands);
    return 0;
}
