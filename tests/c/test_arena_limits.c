/* Tests of fl_arena: refused resources, limits of the process, forked children, attaching. */
#include "check.h"

#include "arena_fixture.h"

#include <errno.h>
#include <sys/resource.h>

/* ---- refused resources */

static int open_and_get(void *arg)
{
    fl_arena *arena = (fl_arena *)arg;
    fl_shared_block *block = (fl_shared_block *)arg, *second;
    fl_err err = {0};
    int status = fl_arena_open(64 * MIB, &arena, &err);
    if (status != FL_OK) {
        CHECK(arena == NULL && err.code == status && err.text[0] != '\0');
        return status;
    }
    status = fl_arena_get(arena, 5 * KIB, &block, &err);
    if (status != FL_OK) {
        CHECK(block == NULL && err.code == status && err.text[0] != '\0');
        CHECK_INT(fl_arena_get(arena, 5 * KIB, &block, NULL), FL_OK); /* the next one is there */
    }
    fl_shared_block_data(block)[0] = 1;
    if (status == FL_OK) {
        status = fl_arena_get(arena, MIB, &second, &err);
        fl_shared_block_give(second);
    }
    fl_arena_close(arena);
    fl_shared_block_give(block);
    return status;
}

static void test_every_refused_resource(void)
{
    char any = 0;
    CHECK_INT(open_and_get(&any), FL_OK);
    int64_t descriptors = count_descriptors(), space = count_address_space();
    CHECK(refuse_each(open_and_get, &any) >= 7);
    CHECK_INT(count_descriptors(), descriptors);
    CHECK(count_address_space() - space < (int64_t)1 << 30);
}

static void test_attach_refused(void)
{
    fl_arena *arena = open_arena(MIB);
    char *base = (char *)&arena;
    fl_err err = {0};
    fl_fault_arm(1);
    CHECK_INT(fl_arena_attach(fl_arena_fd(arena), MIB, &base, &err), FL_ENOMEM);
    fl_fault_arm(0);
    CHECK(base == NULL && err.code == FL_ENOMEM && err.text[0] != '\0');
    base = (char *)&arena;
    CHECK_INT(fl_arena_attach(-1, MIB, &base, NULL), FL_ENOMEM);
    CHECK(base == NULL);
    fl_arena_close(arena);
}

/* ---- limits */

static void limit(int resource, int64_t bytes)
{
    struct rlimit both;
    CHECK(getrlimit((__rlimit_resource_t)resource, &both) == 0);
    both.rlim_cur = (rlim_t)bytes;
    CHECK(setrlimit((__rlimit_resource_t)resource, &both) == 0);
}

static void check_refused(fl_arena *arena, int64_t bytes)
{
    fl_shared_block *block = (fl_shared_block *)arena;
    fl_err err = {0};
    CHECK_INT(fl_arena_get(arena, bytes, &block, &err), FL_ENOMEM);
    CHECK(block == NULL && err.code == FL_ENOMEM && err.text[0] != '\0');
}

/* Takes blocks of `bytes` until the arena is used up, and gives all back. */
static int64_t use_up(fl_arena *arena, int64_t bytes)
{
    enum { MOST = 1000 };
    static fl_shared_block *blocks[MOST];
    int64_t count = 0;
    while (count < MOST && fl_arena_get(arena, bytes, &blocks[count], NULL) == FL_OK) {
        CHECK(holds_only(fl_shared_block_data(blocks[count]), 0,
                         fl_shared_block_bytes(blocks[count])));
        memset(fl_shared_block_data(blocks[count]), 1,
               (size_t)fl_shared_block_bytes(blocks[count]));
        count++;
    }
    CHECK(count < MOST);
    check_refused(arena, bytes);
    int64_t most = count;
    while (count > 0) fl_shared_block_give(blocks[--count]);
    return most;
}

static int use_small_files(void *arg)
{
    (void)arg;
    fl_arena *arena;
    fl_err err = {0};
    limit(RLIMIT_FSIZE, 4 * MIB + 123); /* more than that and SIGXFSZ ends us */
    arena = open_arena(4 * MIB);
    CHECK(fl_arena_bytes(arena) <= 4 * MIB + 123);
    int64_t most = use_up(arena, 60 * KIB);
    CHECK(most >= 15 && most <= 4 * MIB / (60 * KIB));
    for (int i = 0; i < 20; i++) CHECK_INT(use_up(arena, 60 * KIB), most);
    check_refused(arena, MIB); /* space once given to one tier stays with it */
    fl_arena_close(arena);

    arena = (fl_arena *)&err;
    CHECK_INT(fl_arena_open(4 * MIB + 200, &arena, &err), FL_ENOMEM);
    CHECK(arena == NULL && err.code == FL_ENOMEM && err.text[0] != '\0');
    return 0;
}

static void test_a_limit_on_files_makes_a_small_arena(void)
{
    CHECK_INT(run_child(use_small_files, NULL), 0);
}

static int use_little_space(void *arg)
{
    (void)arg;
    fl_arena *arena;
    fl_err err = {0};
    limit(RLIMIT_AS, count_address_space() + 200 * MIB);
    arena = open_arena(MIB);
    CHECK(fl_arena_bytes(arena) <= 200 * MIB);
    CHECK(use_up(arena, MIB) * MIB <= fl_arena_bytes(arena));
    fl_arena_close(arena);
    CHECK_INT(fl_arena_open((int64_t)1 << 40, &arena, &err), FL_ENOMEM);
    CHECK(arena == NULL && err.code == FL_ENOMEM && err.text[0] != '\0');
    arena = open_arena(150 * MIB); /* nothing much larger could be had */
    CHECK(fl_arena_bytes(arena) <= 200 * MIB);
    fl_arena_close(arena);
    return 0;
}

static void test_little_address_space_makes_a_small_arena(void)
{
    CHECK_INT(run_child(use_little_space, NULL), 0);
}

static void test_an_impossible_size_does_no_harm(void)
{
    const int64_t impossible[] = {(int64_t)1 << 43, (int64_t)1 << 60, INT64_MAX - 64, INT64_MAX};
    fl_arena *arena = open_arena(64 * MIB), *none;
    for (int i = 0; i < 4; i++) {
        check_refused(arena, impossible[i]);
        fl_shared_block *block = get_block(arena, 100);
        CHECK_INT(fl_shared_block_offset(block), 0);
        fl_shared_block_give(block);
        CHECK_INT(fl_arena_open(impossible[i], &none, NULL), FL_ENOMEM);
        CHECK(none == NULL);
    }
    fl_arena_close(arena);
}

/* ---- forks */

typedef struct family {
    fl_arena *arena;
    fl_shared_block *held[4]; /* owned by the parent */
    int64_t bytes;            /* of each */
} family;

static family start_family(void)
{
    family f = {.arena = open_arena(64 * MIB), .bytes = 100 * KIB};
    for (int i = 0; i < 4; i++) {
        f.held[i] = get_block(f.arena, f.bytes);
        memset(fl_shared_block_data(f.held[i]), 10 + i, (size_t)f.bytes);
    }
    fl_shared_block_give(get_block(f.arena, f.bytes)); /* one that waits to be used again */
    return f;
}

static void end_family(family *f)
{
    for (int i = 0; i < 4; i++) fl_shared_block_give(f->held[i]);
    CHECK_INT(held_bytes(f->arena), 0);
    fl_arena_close(f->arena);
}

static void check_held(const family *f)
{
    CHECK(held_bytes(f->arena) >= 4 * f->bytes);
    for (int i = 0; i < 4; i++)
        CHECK(holds_only(fl_shared_block_data(f->held[i]), (char)(10 + i), f->bytes));
}

/* Runs in a child of a parent with blocks, and drops everything: no call may have an effect. */
static int drop_everything(void *arg)
{
    family *f = arg;
    fl_err err = {0};
    fl_shared_block *block = f->held[0];
    for (int i = 0; i < 4; i++) fl_shared_block_give(f->held[i]);
    CHECK_INT(fl_arena_get(f->arena, f->bytes, &block, &err), FL_EFORK);
    CHECK(block == NULL && err.code == FL_EFORK && err.text[0] != '\0');
    for (int i = 0; i < 6; i++) fl_arena_close(f->arena); /* more often than there are references */
    check_held(f);                                        /* still there, as it was */
    fl_arena *own = open_arena(MIB);                      /* made in the child: as good as any */
    fl_shared_block_give(get_block(own, f->bytes));
    fl_arena_close(own);
    return 0;
}

static void test_a_child_drops_everything(void)
{
    family f = start_family();
    CHECK_INT(run_child(drop_everything, &f), 0);
    check_held(&f);
    fl_shared_block *fresh = get_block(f.arena, f.bytes); /* and the parent goes on */
    for (int i = 0; i < 4; i++)
        CHECK(fl_shared_block_offset(fresh) != fl_shared_block_offset(f.held[i]));
    fl_shared_block_give(fresh);
    end_family(&f);
}

static int attach_and_answer(void *arg)
{
    family *f = arg;
    int64_t offsets[4], bytes = fl_arena_bytes(f->arena);
    int fd = fl_arena_fd(f->arena);
    for (int i = 0; i < 4; i++) offsets[i] = fl_shared_block_offset(f->held[i]);
    CHECK(munmap(fl_arena_base(f->arena), (size_t)bytes) == 0); /* as if this were no fork */
    char *base;
    CHECK_INT(fl_arena_attach(fd, bytes, &base, NULL), FL_OK);
    for (int i = 0; i < 4; i++) {
        CHECK(holds_only(base + offsets[i], (char)(10 + i), f->bytes));
        memset(base + offsets[i], 20 + i, (size_t)f->bytes);
    }
    CHECK(munmap(base, (size_t)bytes) == 0);
    return 0;
}

static void test_another_process_attaches(void)
{
    family f = start_family();
    CHECK_INT(run_child(attach_and_answer, &f), 0);
    for (int i = 0; i < 4; i++)
        CHECK(holds_only(fl_shared_block_data(f.held[i]), (char)(20 + i), f.bytes));
    end_family(&f);
}

/* A descriptor left open by exec would keep the memory of a parent that is gone. */
static void test_the_descriptor_closes_on_exec(void)
{
    fl_arena *arena = open_arena(MIB);
    CHECK((fcntl(fl_arena_fd(arena), F_GETFD) & FD_CLOEXEC) != 0);
    fl_arena_close(arena);
}

int main(void)
{
    start_tests();
    RUN(test_every_refused_resource);
    RUN(test_attach_refused);
    RUN(test_a_limit_on_files_makes_a_small_arena);
    RUN(test_little_address_space_makes_a_small_arena);
    RUN(test_an_impossible_size_does_no_harm);
    RUN(test_a_child_drops_everything);
    RUN(test_another_process_attaches);
    RUN(test_the_descriptor_closes_on_exec);
    return 0;
}
