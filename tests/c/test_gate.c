/* Tests of fl_gate: readers stay out while the gate is closed, a closing thread waits for readers
 * inside, and a table reads its arrays at their new addresses after a move. */
#include "table_fixture.h"

#include "fl_gate.h"

#include <sched.h>

enum { READERS = 4, MOVES = 2, ROUNDS = 500 };

/* Memory that moves between two sides. */
typedef struct shared {
    fl_gate gate;
    int32_t side[2];
    int32_t *value; /* under the gate: one of the sides; the other is spoiled */
    _Atomic bool is_over;
    _Atomic int64_t reads;
    _Atomic int32_t entered;
} shared;

static void *read_on(void *arg)
{
    shared *s = arg;
    while (!atomic_load(&s->is_over)) {
        fl_gate_enter(&s->gate);
        const volatile int32_t *value = s->value;
        for (int i = 0; i < 3; i++) {
            CHECK_INT(*value, 7);
            sched_yield();
        }
        atomic_fetch_add(&s->reads, 1);
        fl_gate_leave(&s->gate);
    }
    return NULL;
}

static pthread_mutex_t movers = PTHREAD_MUTEX_INITIALIZER;

/* Moves the memory to the other side. */
static void move_once(shared *s)
{
    fl_gate_close(&s->gate);
    fl_gate_wait(&s->gate);
    CHECK(fl_gate_is_closed(&s->gate));
    pthread_mutex_lock(&movers);
    int32_t *from = s->value;
    s->value = from == s->side ? s->side + 1 : s->side;
    *s->value = *from;
    *from = -1;
    sched_yield(); /* to a reader who is still inside */
    pthread_mutex_unlock(&movers);
    fl_gate_open(&s->gate);
}

static void *move_on(void *arg)
{
    for (int i = 0; i < ROUNDS; i++) move_once(arg);
    return NULL;
}

static void test_memory_moves_under_no_reader(void)
{
    shared s = {.side = {7, -1}};
    pthread_t readers[READERS], moving[MOVES];
    s.value = s.side;
    CHECK_INT(fl_gate_init(&s.gate, NULL), FL_OK);
    for (int i = 0; i < READERS; i++)
        CHECK_INT(fl_thread_start(&readers[i], read_on, &s, NULL), FL_OK);
    while (atomic_load(&s.reads) == 0) sched_yield();
    for (int i = 0; i < MOVES; i++)
        CHECK_INT(fl_thread_start(&moving[i], move_on, &s, NULL), FL_OK);
    for (int i = 0; i < MOVES; i++) pthread_join(moving[i], NULL);
    int64_t before = atomic_load(&s.reads);
    while (atomic_load(&s.reads) == before) sched_yield();
    atomic_store(&s.is_over, true);
    for (int i = 0; i < READERS; i++) pthread_join(readers[i], NULL);
    CHECK(!fl_gate_is_closed(&s.gate));
    fl_gate_destroy(&s.gate);
}

static void *enter_once(void *arg)
{
    shared *s = arg;
    fl_gate_enter(&s->gate);
    atomic_store(&s->entered, 1);
    fl_gate_leave(&s->gate);
    return NULL;
}

static void test_closed_twice_it_opens_at_the_second_open(void)
{
    shared s = {0};
    pthread_t reader;
    CHECK_INT(fl_gate_init(&s.gate, NULL), FL_OK);
    fl_gate_close(&s.gate);
    fl_gate_close(&s.gate);
    fl_gate_wait(&s.gate);
    CHECK_INT(fl_thread_start(&reader, enter_once, &s, NULL), FL_OK);
    fl_gate_open(&s.gate);
    for (int i = 0; i < 1000; i++) sched_yield();
    CHECK(fl_gate_is_closed(&s.gate) && atomic_load(&s.entered) == 0);
    fl_gate_open(&s.gate);
    pthread_join(reader, NULL);
    CHECK_INT(s.entered, 1);
    fl_gate_destroy(&s.gate);
}

/* Runs in the child of a process that holds the gate closed, with a reader inside. */
static int use_in_child(void *arg)
{
    fl_gate *gate = arg;
    fl_gate_wait(gate);
    fl_gate_enter(gate);
    fl_gate_leave(gate);
    fl_gate_open(gate);
    fl_gate_destroy(gate);
    return 0;
}

static void test_in_a_child_nothing_waits(void)
{
    fl_gate gate;
    CHECK_INT(fl_gate_init(&gate, NULL), FL_OK);
    fl_gate_enter(&gate);
    fl_gate_close(&gate);
    CHECK_INT(run_child(use_in_child, &gate), 0);
    fl_gate_open(&gate);
    fl_gate_leave(&gate);
    fl_gate_destroy(&gate);
}

static int make_gate(void *arg)
{
    (void)arg;
    fl_gate gate = {0};
    int status = fl_gate_init(&gate, NULL);
    fl_gate_destroy(&gate);
    return status;
}

static void test_refused_locks(void) { CHECK_INT(refuse_each(make_gate, NULL), 2); }

/* A table of two rows that move. */
static void test_a_table_reads_where_its_rows_are(void)
{
    int32_t rows[2] = {1, 2}, moved[2] = {3, 4}, out[2];
    column_spec spec = {.view = {.data = (const char *)rows,
                                 .dtype = {0, 32, 1},
                                 .ndim = 1,
                                 .shape = {2},
                                 .stride = {sizeof(int32_t)}}};
    fl_rows both = {.count = 2, .is_range = true};
    fl_table *table;
    CHECK_INT(open_specs(&spec, 1, &table, NULL), FL_OK);
    CHECK_INT(gather_part(table, &both, 0, 0, 1, (char *)out, NULL), FL_OK);
    CHECK(out[0] == 1 && out[1] == 2);
    fl_table_move(table, 0, 0, (const char *)moved);
    CHECK_INT(gather_part(table, &both, 0, 0, 1, (char *)out, NULL), FL_OK);
    CHECK(out[0] == 3 && out[1] == 4);
    fl_table_close(table);
}

int main(void)
{
    start_tests();
    RUN(test_memory_moves_under_no_reader);
    RUN(test_closed_twice_it_opens_at_the_second_open);
    RUN(test_in_a_child_nothing_waits);
    RUN(test_refused_locks);
    RUN(test_a_table_reads_where_its_rows_are);
    return 0;
}
