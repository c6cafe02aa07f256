/* Tests of fl_tensor_list: what a collection rebuilds, how chunks are numbered, which tensors
 * overlap. No test touches the memory of a tensor, so any address and any size will do. */
#include "check.h"

#include "fl_tensor_list.h"

typedef struct tensor {
    uintptr_t data;
    int64_t count;
    int32_t type;
} tensor;

enum { MANY = 5000 };

static int collect(fl_tensor_list *list, const tensor *tensors, int64_t count, fl_err *err)
{
    fl_tensor_list_begin(list);
    for (int64_t i = 0; i < count; i++)
        FL_TRY(fl_tensor_list_add(list, (char *)tensors[i].data, tensors[i].count, tensors[i].type,
                                  err));
    return fl_tensor_list_end(list, err);
}

static void check_empty(const fl_tensor_list *list)
{
    CHECK(list->count == 0 && list->chunks == 0 && list->bytes == 0 && list->collected == 0);
}

/* Checks that the list is what these tensors must make. */
static void check_built(const fl_tensor_list *list, const tensor *tensors, int64_t count)
{
    int64_t spans = 0, chunks = 0, bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        if (tensors[i].count == 0) continue;
        const fl_span *span = &list->spans[spans++];
        CHECK(spans <= list->count && (uintptr_t)span->data == tensors[i].data);
        CHECK_INT(span->count, tensors[i].count);
        CHECK_INT(span->type, tensors[i].type);
        CHECK_INT(span->chunk, chunks);
        chunks += (tensors[i].count + FL_CHUNK - 1) / FL_CHUNK;
        bytes += tensors[i].count * fl_float_bytes(tensors[i].type);
    }
    CHECK_INT(list->count, spans);
    CHECK_INT(list->collected, spans);
    CHECK_INT(list->chunks, chunks);
    CHECK_INT(list->bytes, bytes);
    CHECK(list->sums_capacity >= chunks);
    for (int64_t i = 0; i < fl_min(chunks, 100000); i++) list->sums[i] = 1;
    if (chunks > 0) list->sums[chunks - 1] = 1;
}

static void
check_collection(fl_tensor_list *list, const tensor *tensors, int64_t count, bool is_changed)
{
    CHECK_INT(collect(list, tensors, count, NULL), FL_OK);
    CHECK_INT(list->is_changed, is_changed);
    check_built(list, tensors, count);
}

/* Tensors one after the other, with gaps; sizes on both sides of one and two chunks. */
static void lay_out(tensor *tensors, int64_t count, uintptr_t from)
{
    const int64_t sizes[] = {1,        5,        FL_CHUNK - 1,     FL_CHUNK,        FL_CHUNK + 1,
                             FL_CHUNK, 40000000, 2 * FL_CHUNK - 1, 2 * FL_CHUNK + 1};
    for (int64_t i = 0; i < count; i++) {
        tensors[i] = (tensor){from, sizes[i % 9], (int32_t)(i % FL_FLOATS)};
        from += (uintptr_t)(tensors[i].count * fl_float_bytes(tensors[i].type)) + 24;
    }
}

static void test_element_sizes(void)
{
    CHECK_INT(fl_float_bytes(FL_F64), 8);
    CHECK_INT(fl_float_bytes(FL_F32), 4);
    CHECK_INT(fl_float_bytes(FL_F16), 2);
    CHECK_INT(fl_float_bytes(FL_BF16), 2);
}

static void test_the_same_collection_again_rebuilds_nothing(void)
{
    tensor tensors[40];
    lay_out(tensors, 40, 4096);
    for (int64_t count = 0; count <= 40; count += 5) {
        fl_tensor_list list = {0};
        check_collection(&list, tensors, count, count > 0);
        const double *sums = list.sums;
        fl_fault_arm(1); /* nothing is asked for either */
        for (int round = 0; round < 3; round++) check_collection(&list, tensors, count, false);
        CHECK_INT(fl_fault_asked(), 0);
        fl_fault_arm(0);
        CHECK(list.sums == sums);
        fl_tensor_list_close(&list);
    }
}

static void test_each_change_is_seen(void)
{
    enum { COUNT = 12 };
    tensor before[COUNT], after[COUNT];
    lay_out(before, COUNT, 4096);
    for (int at = 0; at < COUNT; at++) {
        for (int what = 0; what < 4; what++) {
            fl_tensor_list list = {0};
            memcpy(after, before, sizeof after);
            if (what == 0) after[at].data = (uintptr_t)1 << 40;
            if (what == 1) after[at].count += at % 2 ? 1 : -after[at].count + 2;
            if (what == 2) after[at].type = after[at].type == FL_F16 ? FL_BF16 : FL_F16;
            if (what == 3) after[at].count = 0;
            check_collection(&list, before, COUNT, true);
            check_collection(&list, after, COUNT, true);
            check_collection(&list, after, COUNT, false);
            check_collection(&list, before, COUNT, true);
            fl_tensor_list_close(&list);
        }
    }
}

static void test_fewer_and_more(void)
{
    tensor tensors[30];
    lay_out(tensors, 30, 4096);
    const int64_t counts[] = {10, 9, 10, 1, 0, 1, 30, 29, 0, 0, 30};
    fl_tensor_list list = {0};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        bool is_changed = i == 0 || counts[i] != counts[i - 1];
        check_collection(&list, tensors, counts[i], is_changed);
        check_collection(&list, tensors, counts[i], false);
    }
    check_collection(&list, tensors + 1, 29, true); /* as many, less the first */
    fl_tensor_list_close(&list);
}

static void test_empty_tensors_add_nothing(void)
{
    const tensor tensors[] = {{0, 0, FL_F32},         {4096, 10, FL_F32}, {4096, 0, FL_F32},
                              {4100, 0, FL_F64},      {8192, 1, FL_F16},  {UINTPTR_MAX, 0, FL_BF16},
                              {16384, 20000, FL_BF16}};
    const tensor full[] = {{4096, 10, FL_F32}, {8192, 1, FL_F16}, {16384, 20000, FL_BF16}};
    fl_tensor_list list = {0};
    check_collection(&list, tensors, 1, false);
    CHECK_INT(list.chunks, 0);
    check_collection(&list, tensors, 7, true);
    CHECK_INT(list.count, 3);
    CHECK_INT(list.chunks, 4);
    check_collection(&list, full, 3, false); /* the same list */
    fl_tensor_list_close(&list);
}

static void test_find_knows_every_chunk(void)
{
    tensor tensors[64];
    for (int64_t count = 1; count <= 64; count += 9) {
        fl_tensor_list list = {0};
        lay_out(tensors, count, 4096);
        check_collection(&list, tensors, count, true);
        int64_t chunk = 0;
        for (int64_t i = 0; i < count; i++) {
            int64_t own = (tensors[i].count + FL_CHUNK - 1) / FL_CHUNK;
            for (int64_t k = 0; k < own; k++) CHECK_INT(fl_tensor_list_find(&list, chunk++), i);
        }
        CHECK_INT(chunk, list.chunks);
        fl_tensor_list_close(&list);
    }
}

static void check_shared(const tensor *tensors, int64_t count)
{
    fl_tensor_list list = {0};
    const tensor fine[] = {{4096, 7, FL_F32}, {8192, FL_CHUNK + 1, FL_F64}};
    for (int round = 0; round < 3; round++) { /* on an empty list, again, on a full list */
        fl_err err = {0};
        CHECK_INT(collect(&list, tensors, count, &err), FL_EINVAL);
        CHECK(err.code == FL_EINVAL && strstr(err.text, "share memory") != NULL);
        check_empty(&list);
        if (round == 1) check_collection(&list, fine, 2, true);
    }
    check_collection(&list, fine, 2, true);
    fl_tensor_list_close(&list);
}

static void check_apart(const tensor *tensors, int64_t count)
{
    fl_tensor_list list = {0};
    check_collection(&list, tensors, count, true);
    fl_tensor_list_close(&list);
}

static void check_both_orders(const tensor *tensors, void (*check)(const tensor *, int64_t))
{
    check(tensors, 2);
    const tensor swapped[2] = {tensors[1], tensors[0]};
    check(swapped, 2);
}

static void test_two_tensors_that_share_memory(void)
{
    const tensor pairs[][2] = {
        {{4096, 10, FL_F32}, {4096, 10, FL_F32}}, /* identical */
        {{4096, 10, FL_F32}, {4096, 20, FL_F16}},
        {{4096, 10, FL_F32}, {4096, 1, FL_F16}},
        {{4096, 10, FL_F32}, {4132, 10, FL_F32}}, /* partial: by one element */
        {{4096, 10, FL_F16}, {4114, 10, FL_F64}},
        {{4096, 100, FL_F64}, {4888, 1, FL_F64}},
        {{4096, 100, FL_F64}, {4500, 1, FL_BF16}}, /* nested */
        {{0, (int64_t)1 << 33, FL_F64}, {(uintptr_t)1 << 35, 1, FL_BF16}},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        check_both_orders(pairs[i], check_shared);
}

static void test_neighbours_do_not_share_memory(void)
{
    const tensor pairs[][2] = {
        {{4096, 10, FL_F32}, {4136, 10, FL_F32}},
        {{4096, 10, FL_F64}, {4176, 1, FL_F16}},
        {{4096, 3, FL_BF16}, {4102, 3, FL_F16}},
        {{4096, 10, FL_F32}, {(uintptr_t)1 << 46, 10, FL_F32}},
        {{0, 1, FL_F16}, {UINTPTR_MAX - 63, 31, FL_F16}},
        {{0, (int64_t)1 << 33, FL_F64}, {(uintptr_t)1 << 36, 1, FL_F16}},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        check_both_orders(pairs[i], check_apart);
}

static bool has_shared(const tensor *tensors, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uintptr_t end =
            tensors[i].data + (uintptr_t)(tensors[i].count * fl_float_bytes(tensors[i].type));
        for (int64_t j = 0; j < count; j++)
            if (j != i && tensors[j].data >= tensors[i].data && tensors[j].data < end) return true;
    }
    return false;
}

/* Compares with a comparison of every pair, in address ranges from a few bytes to the whole
 * space. */
static void test_overlap_of_random_tensors(void)
{
    uint64_t state = 1;
    int64_t shared = 0, apart = 0;
    fl_tensor_list list = {0};
    for (int round = 0; round < 6000; round++) {
        tensor tensors[12];
        int64_t count = 2 + random_below(&state, 11);
        int range = 6 + (int)random_below(&state, 57), size = (int)random_below(&state, range - 4);
        uintptr_t base = range < 60 ? next_random(&state) >> 2 : 0;
        for (int64_t i = 0; i < count; i++) {
            tensors[i].data = base + (next_random(&state) >> (64 - range));
            if (i > 0 && random_below(&state, 16) == 0) /* close to the one before */
                tensors[i].data = tensors[i - 1].data + (uintptr_t)(tensors[i - 1].count * 2);
            tensors[i].count = 1 + random_below(&state, (int64_t)1 << fl_min(size, 24));
            tensors[i].type = (int32_t)random_below(&state, FL_FLOATS);
        }
        int status = collect(&list, tensors, count, NULL);
        bool is_shared = has_shared(tensors, count);
        CHECK_INT(status, is_shared ? FL_EINVAL : FL_OK);
        if (is_shared)
            check_empty(&list);
        else
            check_built(&list, tensors, count);
        shared += is_shared;
        apart += !is_shared;
    }
    CHECK(shared > 1000 && apart > 1000);
    fl_tensor_list_close(&list);
}

/* Checks 5 000 tensors in random order, step bytes from one to the next; then one tensor inside a
 * second. */
static void check_many(uint64_t *state, uintptr_t lowest, uintptr_t step)
{
    static tensor tensors[MANY];
    for (int64_t i = 0; i < MANY; i++) {
        uintptr_t at = lowest + (uintptr_t)i * step;
        tensors[i] = (tensor){at, (int64_t)fl_min(40000, (int64_t)step / 4), FL_F32};
    }
    tensors[MANY - 1].count = 1;
    for (int64_t i = MANY - 1; i > 0; i--) {
        int64_t other = random_below(state, i + 1);
        tensor kept = tensors[i];
        tensors[i] = tensors[other];
        tensors[other] = kept;
    }
    fl_tensor_list list = {0};
    check_collection(&list, tensors, MANY, true);
    check_collection(&list, tensors, MANY, false);
    int64_t one = random_below(state, MANY),
            other = (one + 1 + random_below(state, MANY - 1)) % MANY;
    uintptr_t own = tensors[one].data;
    tensors[one].data = tensors[other].data + 2;
    CHECK_INT(collect(&list, tensors, MANY, NULL), FL_EINVAL);
    check_empty(&list);
    tensors[one].data = own;
    check_collection(&list, tensors, MANY, true);
    fl_tensor_list_close(&list);
}

static void test_many_tensors_in_random_order(void)
{
    uint64_t state = 2;
    check_many(&state, 4096, 4);
    check_many(&state, 1 << 20, 64);
    check_many(&state, (uintptr_t)1 << 46, 4096 * 3);
    check_many(&state, 0, (uintptr_t)1 << 40);
    check_many(&state, 64, UINTPTR_MAX / 8 / MANY * 8); /* up to the last address */
}

static void test_close_leaves_it_as_it_began(void)
{
    tensor tensors[20];
    lay_out(tensors, 20, 4096);
    fl_tensor_list list = {0};
    const fl_tensor_list new = {0};
    fl_tensor_list_close(&list);
    for (int round = 0; round < 2; round++) {
        check_collection(&list, tensors, 20, true);
        fl_tensor_list_close(&list);
        CHECK(memcmp(&list, &new, sizeof list) == 0);
    }
}

/* A collection that stops halfway is not what the next is compared with. */
static void test_a_collection_left_halfway(void)
{
    tensor old[8], new[8];
    lay_out(old, 8, 4096);
    for (int i = 0; i < 8; i++)
        new[i] = (tensor){(uintptr_t)(i + 1) << 40, 3 * FL_CHUNK + i, FL_F32};
    for (int64_t stop = 0; stop <= 8; stop++) {
        fl_tensor_list list = {0};
        check_collection(&list, old, 8, true);
        fl_tensor_list_begin(&list);
        for (int64_t i = 0; i < stop; i++)
            CHECK_INT(
                fl_tensor_list_add(&list, (char *)new[i].data, new[i].count, new[i].type, NULL),
                FL_OK);
        check_collection(&list, new, 8, true);
        fl_tensor_list_begin(&list);
        if (stop > 0)
            CHECK_INT(fl_tensor_list_add(&list, (char *)old->data, old->count, old->type, NULL),
                      FL_OK);
        check_collection(&list, new, 8, stop > 0);
        fl_tensor_list_close(&list);
    }
}

static int collect_with_faults(void *arg)
{
    const int64_t *count = arg;
    tensor tensors[40], shared[2] = {{4096, 3, FL_F32}, {4100, 3, FL_F32}};
    lay_out(tensors, 40, 4096);
    fl_tensor_list list = {0};
    fl_err err = {0};
    int status = collect(&list, tensors, *count, &err);
    if (status != FL_OK) {
        CHECK(err.code == FL_ENOMEM && err.text[0] != '\0');
        check_empty(&list);
        CHECK_INT(collect(&list, shared, 2, NULL), FL_EINVAL);
        check_collection(&list, tensors, *count, true);
    }
    check_built(&list, tensors, *count);
    fl_tensor_list_close(&list);
    return status;
}

static void test_refused_memory(void)
{
    for (int64_t count = 1; count <= 40; count += 3)
        CHECK(refuse_each(collect_with_faults, &count) >= 3);
}

/* The list has grown for `before` already; each later request is refused in turn. The collection
 * with faults begins with `same` tensors of the collection before. */
static void check_refused_after(int64_t before, int64_t same)
{
    tensor old[40], new[40];
    lay_out(old, 40, 4096);
    for (int i = 0; i < 40; i++)
        new[i] = (tensor){(uintptr_t)(i + 1) << 40, 5 * FL_CHUNK + i, FL_F32};
    memcpy(new, old, (size_t)same * sizeof *new);
    for (int64_t n = 1;; n++) {
        fl_tensor_list list = {0};
        check_collection(&list, old, before, true);
        fl_fault_arm(n);
        int status = collect(&list, new, 40, NULL);
        bool was_refused = fl_fault_asked() >= n;
        fl_fault_arm(0);
        CHECK_INT(status, was_refused ? FL_ENOMEM : FL_OK);
        if (was_refused) check_empty(&list);
        check_collection(&list, new, was_refused ? before : 40, was_refused);
        fl_tensor_list_close(&list);
        if (!was_refused) return;
    }
}

static void test_refused_memory_after_a_collection(void)
{
    for (int64_t before = 1; before <= 16; before++) {
        check_refused_after(before, 0);
        check_refused_after(before, before);
        check_refused_after(before, before / 2);
    }
}

static void test_more_than_two_billion_elements(void)
{
    const int64_t huge = ((int64_t)1 << 33) + 12345;
    const tensor tensors[] = {{4096, 10, FL_F32},
                              {(uintptr_t)1 << 44, huge, FL_F16},
                              {(uintptr_t)1 << 45, huge, FL_F64},
                              {(uintptr_t)1 << 43, INT32_MAX, FL_F32},
                              {(uintptr_t)1 << 42, (int64_t)INT32_MAX + 1, FL_BF16},
                              {8192, 1, FL_F64}};
    fl_tensor_list list = {0};
    check_collection(&list, tensors, 6, true);
    CHECK(list.bytes > (int64_t)80 << 30);
    int64_t chunks = (huge - 1) / FL_CHUNK + 1;
    for (int64_t i = 0; i <= 1; i++) {
        CHECK_INT(fl_tensor_list_find(&list, 1 + i * chunks), 1 + i);
        CHECK_INT(fl_tensor_list_find(&list, (1 + i) * chunks), 1 + i);
    }
    CHECK_INT(fl_tensor_list_find(&list, list.chunks - 1), 5);
    CHECK_INT(fl_tensor_list_find(&list, list.chunks - 2), 4);
    fl_tensor_list_close(&list);
}

int main(void)
{
    start_tests();
    RUN(test_element_sizes);
    RUN(test_the_same_collection_again_rebuilds_nothing);
    RUN(test_each_change_is_seen);
    RUN(test_fewer_and_more);
    RUN(test_empty_tensors_add_nothing);
    RUN(test_find_knows_every_chunk);
    RUN(test_two_tensors_that_share_memory);
    RUN(test_neighbours_do_not_share_memory);
    RUN(test_overlap_of_random_tensors);
    RUN(test_many_tensors_in_random_order);
    RUN(test_close_leaves_it_as_it_began);
    RUN(test_a_collection_left_halfway);
    RUN(test_refused_memory);
    RUN(test_refused_memory_after_a_collection);
    RUN(test_more_than_two_billion_elements);
    return 0;
}
