/* fl_base: status codes, the error record, checked sizes, allocation.
 *
 * Floor 0. Everything above returns `int` (FL_OK or a negative FL_E*) and takes
 * an `fl_err *` last, which may be NULL. Nothing here prints, exits or aborts.
 * All functions may be called from any thread and never block. */
#ifndef FL_BASE_H
#define FL_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Begin a function of a header that kernels of a device call as well. The second one is not copied
 * to each place that calls it there. */
#ifdef __CUDACC__
#define FL_HOST_DEVICE static __host__ __device__ inline
#define FL_HOST_DEVICE_ONCE static __host__ __device__ __noinline__
#else
#define FL_HOST_DEVICE static inline
#define FL_HOST_DEVICE_ONCE static inline
#endif

enum {
    FL_OK = 0,
    FL_ENOMEM = -1,   /* no memory, address range or lock was available */
    FL_EINDEX = -2,   /* an index is out of bounds: position, value, length are set */
    FL_ESOURCE = -3,  /* source memory vanished under a copy: field, row are set */
    FL_ETIMEOUT = -4, /* the deadline has passed, and nothing came */
    FL_EEND = -5,     /* nothing is left to receive */
    FL_ECLOSED = -6,  /* closed or stopped while in use */
    FL_EINVAL = -7,   /* sizes that do not fit together or overflow int64 */
    FL_EFORK = -8,    /* made in a parent process, used in its child */
    FL_ETHREAD = -9,  /* a thread could not be started */
    FL_EDEVICE = -10, /* a call of the device's runtime failed: value is its error number. If value
                         is 0, there is no such device, or no code for the device */
    FL_EDAMAGE = -11, /* another process has overwritten shared memory */
    FL_EFILE = -12,   /* a file of tokens cannot be read: position is the file's number, value the
                         byte, length the errno; 0: the file has become shorter */
    FL_ETOKEN = -13   /* a token is out of range: position is the file's number, value the token,
                         length the token's position in the file */
};

/* An error record. Plain data: copied by assignment, owns nothing. */
typedef struct fl_err {
    int code;         /* FL_OK or FL_E* */
    int32_t field;    /* FL_ESOURCE: the field of the table */
    int64_t position; /* FL_EINDEX: position in the batch; FL_ESOURCE: the array of the field */
    int64_t value;  /* FL_EINDEX: the index; FL_ESOURCE: the row; FL_EDEVICE, and FL_ENOMEM from the
                       device's runtime: the runtime's error number; FL_EDAMAGE: the worker */
    int64_t length; /* FL_EINDEX: the number of rows */
    char text[160]; /* one sentence, for the other codes */
} fl_err;

#define FL_TRY(expr)                                      \
    do {                                                  \
        int fl_try_status = (expr);                       \
        if (fl_try_status != FL_OK) return fl_try_status; \
    } while (0)

/* Fills `err` (if not NULL) and returns `code`, so that `return fl_fail(...)` works. */
int fl_fail(fl_err *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Multiplies. Returns true and sets *out if the product fits int64_t; otherwise returns false and
 * leaves *out untouched. */
static inline bool fl_mul(int64_t a, int64_t b, int64_t *out)
{
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *out = product;
    return true;
}

static inline bool fl_add(int64_t a, int64_t b, int64_t *out)
{
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return false;
    *out = sum;
    return true;
}

static inline int64_t fl_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t fl_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Allocates zeroed memory, aligned to 64 bytes; bytes >= 0. Returns NULL if memory is short. The
 * caller frees the memory with fl_free (NULL is fine). */
void *fl_alloc(int64_t bytes);
void fl_free(void *memory);

/* Grows *items (each of item_bytes) to hold at least `count`, keeping the contents. On failure
 * nothing changes. */
int fl_grow(void **items, int64_t *capacity, int64_t count, int64_t item_bytes, fl_err *err);

/* Fault injection for the C tests, compiled in with -DFL_FAULTS: after fl_fault_arm(n) the n-th
 * request for a resource is refused (n >= 1; 0 disarms). fl_fault_asked() counts the requests since
 * then. */
#ifdef FL_FAULTS
void fl_fault_arm(int64_t n);
int64_t fl_fault_asked(void);
bool fl_fault_hit(void);
#else
static inline bool fl_fault_hit(void) { return false; }
#endif

#endif
