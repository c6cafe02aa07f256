/* fl_base: see fl_base.h. The fault counter of test builds is the only state. */
#include "fl_base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef FL_FAULTS
#include <stdatomic.h>
static _Atomic int64_t fault_at;    /* refuse the request with this number; 0: none */
static _Atomic int64_t fault_asked; /* requests since fl_fault_arm */

void fl_fault_arm(int64_t n)
{
    atomic_store(&fault_asked, 0);
    atomic_store(&fault_at, n);
}

int64_t fl_fault_asked(void) { return atomic_load(&fault_asked); }

bool fl_fault_hit(void)
{
    int64_t number = atomic_fetch_add(&fault_asked, 1) + 1;
    return number == atomic_load(&fault_at);
}
#endif

int fl_fail(fl_err *err, int code, const char *format, ...)
{
    if (err == NULL) return code;
    *err = (fl_err){.code = code};
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return code;
}

void *fl_alloc(int64_t bytes)
{
    if (bytes < 0 || bytes > INT64_MAX - 64 || fl_fault_hit()) return NULL;
    size_t size = (size_t)(bytes / 64 * 64 + 64);
    void *memory = aligned_alloc(64, size);
    return memory != NULL ? memset(memory, 0, size) : NULL;
}

void fl_free(void *memory) { free(memory); }

int fl_grow(void **items, int64_t *capacity, int64_t count, int64_t item_bytes, fl_err *err)
{
    if (count <= *capacity) return FL_OK;
    int64_t wanted = fl_max(count, *capacity < INT64_MAX / 2 ? *capacity * 2 : count);
    int64_t bytes;
    void *larger = fl_mul(wanted, item_bytes, &bytes) ? fl_alloc(bytes) : NULL;
    if (larger == NULL)
        return fl_fail(err, FL_ENOMEM, "out of memory for %lld items of %lld bytes",
                       (long long)wanted, (long long)item_bytes);
    if (*capacity > 0) memcpy(larger, *items, (size_t)(*capacity * item_bytes));
    fl_free(*items);
    *items = larger;
    *capacity = wanted;
    return FL_OK;
}
