/* Tests of fl_resample: answers of torch and Pillow, and what kernels rely on. */
#include "check.h"

#include "fl_resample.h"

enum { IN = 9, MOST = 20 };

static const uint8_t samples[IN] = {13, 250, 7, 0, 255, 128, 99, 201, 64};

/* Answers of torch.nn.functional.interpolate over the samples, with antialias=True if there are
 * weights, and of PIL.Image.resize over an image of one row. */
static const struct answer {
    fl_interpolation how;
    int32_t out;
    uint8_t expected[MOST];
} answers[] = {
    {FL_NEAREST, 1, {13}},
    {FL_NEAREST, 2, {13, 255}},
    {FL_NEAREST, 4, {13, 7, 255, 99}},
    {FL_NEAREST, 7, {13, 250, 7, 0, 128, 99, 201}},
    {FL_NEAREST, 9, {13, 250, 7, 0, 255, 128, 99, 201, 64}},
    {FL_NEAREST, 14, {13, 13, 250, 250, 7, 0, 0, 255, 128, 128, 99, 201, 201, 64}},
    {FL_NEAREST, 20, {13,  13,  13,  250, 250, 7,  7,   0,   0,  255,
                      255, 255, 128, 128, 99,  99, 201, 201, 64, 64}},
    {FL_NEAREST_EXACT, 1, {255}},
    {FL_NEAREST_EXACT, 2, {7, 99}},
    {FL_NEAREST_EXACT, 4, {250, 0, 128, 201}},
    {FL_NEAREST_EXACT, 7, {13, 250, 0, 255, 128, 201, 64}},
    {FL_NEAREST_EXACT, 9, {13, 250, 7, 0, 255, 128, 99, 201, 64}},
    {FL_NEAREST_EXACT, 14, {13, 13, 250, 7, 7, 0, 255, 255, 128, 99, 99, 201, 64, 64}},
    {FL_NEAREST_EXACT, 20, {13,  13,  250, 250, 7,  7,  7,   0,   0,  255,
                            255, 128, 128, 99,  99, 99, 201, 201, 64, 64}},
    {FL_BILINEAR, 1, {117}},
    {FL_BILINEAR, 2, {99, 132}},
    {FL_BILINEAR, 4, {113, 79, 150, 130}},
    {FL_BILINEAR, 7, {78, 140, 3, 196, 117, 155, 101}},
    {FL_BILINEAR, 9, {13, 250, 7, 0, 255, 128, 99, 201, 64}},
    {FL_BILINEAR, 14, {13, 123, 224, 68, 4, 9, 173, 214, 133, 110, 125, 190, 128, 64}},
    {FL_BILINEAR, 20, {13,  54,  161, 232, 122, 13,  4,   1,   83, 198,
                       226, 169, 124, 111, 102, 147, 193, 150, 88, 64}},
    {FL_BICUBIC, 1, {116}},
    {FL_BICUBIC, 2, {99, 135}},
    {FL_BICUBIC, 4, {111, 77, 158, 126}},
    {FL_BICUBIC, 7, {77, 152, 0, 215, 115, 159, 99}},
    {FL_BICUBIC, 9, {13, 250, 7, 0, 255, 128, 99, 201, 64}},
    {FL_BICUBIC, 14, {0, 127, 243, 62, 0, 5, 192, 239, 131, 96, 121, 200, 128, 55}},
    {FL_BICUBIC, 20, {0,   45,  179, 247, 135, 10,  0,   0,   77, 218,
                      250, 176, 119, 97,  100, 153, 201, 157, 82, 51}},
    {FL_PILLOW_BILINEAR, 1, {117}},
    {FL_PILLOW_BILINEAR, 2, {99, 132}},
    {FL_PILLOW_BILINEAR, 4, {113, 79, 150, 130}},
    {FL_PILLOW_BILINEAR, 7, {78, 140, 3, 196, 117, 155, 101}},
    {FL_PILLOW_BILINEAR, 14, {13, 123, 224, 68, 4, 9, 173, 214, 133, 110, 125, 190, 128, 64}},
    {FL_PILLOW_BILINEAR, 20, {13,  54,  161, 232, 122, 13,  4,   1,   83, 198,
                              226, 169, 124, 111, 102, 147, 193, 150, 88, 64}},
    {FL_PILLOW_BICUBIC, 1, {116}},
    {FL_PILLOW_BICUBIC, 2, {99, 135}},
    {FL_PILLOW_BICUBIC, 4, {111, 77, 158, 126}},
    {FL_PILLOW_BICUBIC, 7, {77, 152, 0, 215, 115, 159, 99}},
    {FL_PILLOW_BICUBIC, 14, {0, 127, 243, 62, 0, 5, 192, 239, 131, 96, 121, 200, 128, 54}},
    {FL_PILLOW_BICUBIC, 20, {0,   45,  179, 247, 135, 10,  0,   0,   77, 218,
                             250, 176, 119, 97,  100, 153, 201, 157, 82, 51}},
};

static uint8_t resized(const fl_resample *axis, int32_t i)
{
    const uint8_t *x = samples + axis->first[i];
    if (axis->weight == NULL) return x[0];
    int32_t sum = 1 << (axis->precision - 1);
    for (int32_t k = 0; k < axis->count[i]; k++)
        sum += fl_resample_weight(axis, i * axis->taps + k) * x[k];
    return (uint8_t)fl_max(0, fl_min(255, sum >> axis->precision));
}

static void test_answers(void)
{
    fl_resample axis = {0}; /* made again and again: larger, smaller */
    for (size_t n = 0; n < sizeof answers / sizeof *answers; n++) {
        const struct answer *a = &answers[n];
        if (a->out == IN) continue; /* an axis that stays is not resized */
        CHECK_INT(fl_resample_make(&axis, a->how, IN, a->out, NULL), FL_OK);
        for (int32_t i = 0; i < a->out; i++) CHECK_INT(resized(&axis, i), a->expected[i]);
    }
    fl_resample_close(&axis);
}

static void check_axis(const fl_resample *axis, int32_t in, int32_t out)
{
    CHECK(axis->in == in && axis->out == out && axis->precision <= 22);
    CHECK(axis->taps == 1 ? axis->weight == NULL : axis->taps % 2 == 0);
    for (int32_t i = 0; i < out; i++) {
        int32_t end = axis->first[i] + axis->count[i];
        CHECK(axis->first[i] >= 0 && axis->count[i] >= 1 && axis->count[i] <= axis->taps);
        CHECK(end <= in);
        CHECK(i == 0 || (axis->first[i] >= axis->first[i - 1] &&
                         end >= axis->first[i - 1] + axis->count[i - 1]));
        int64_t sum = 0, sizes = 0;
        for (int32_t k = 0; axis->weight != NULL && k < axis->taps; k++) {
            int32_t weight = fl_resample_weight(axis, (int64_t)i * axis->taps + k);
            CHECK(k < axis->count[i] || weight == 0);
            sum += weight;
            sizes += abs(weight);
        }
        CHECK(axis->weight == NULL || llabs(sum - (1 << axis->precision)) <= axis->count[i]);
        CHECK(sizes * 255 + (1 << 22) < INT32_MAX); /* sums fit int32_t */
    }
}

static void test_windows_and_weights(void)
{
    uint64_t seed = 1;
    fl_resample axis = {0};
    for (int n = 0; n < 4000; n++) {
        int32_t in = 1 + (int32_t)random_below(&seed, n % 7 == 0 ? 3000 : 40);
        int32_t out = 1 + (int32_t)random_below(&seed, n % 5 == 0 ? 600 : 40);
        fl_interpolation how = (fl_interpolation)(n % FL_INTERPOLATIONS);
        CHECK_INT(fl_resample_make(&axis, how, in, out, NULL), FL_OK);
        check_axis(&axis, in, out);
    }
    fl_resample_close(&axis);
}

static int make_twice(void *arg)
{
    (void)arg;
    fl_resample axis = {0};
    int status = fl_resample_make(&axis, FL_BILINEAR, 10, 20, NULL);
    if (status == FL_OK) status = fl_resample_make(&axis, FL_BICUBIC, 1000, 2000, NULL);
    fl_resample_close(&axis);
    return status;
}

static void test_it_allocates_only_to_grow(void)
{
    CHECK_INT(refuse_each(make_twice, NULL), 2);
    fl_resample axis = {0};
    CHECK_INT(fl_resample_make(&axis, FL_BICUBIC, 100, 200, NULL), FL_OK);
    fl_fault_arm(1);
    CHECK_INT(fl_resample_make(&axis, FL_BICUBIC, 90, 190, NULL), FL_OK);
    CHECK_INT(fl_resample_make(&axis, FL_NEAREST, 90, 200, NULL), FL_OK);
    CHECK_INT(fl_resample_make(&axis, FL_BICUBIC, 1000, 200, NULL), FL_ENOMEM);
    fl_fault_arm(0);
    CHECK_INT(fl_resample_make(&axis, FL_BICUBIC, 100, 200, NULL), FL_OK);
    check_axis(&axis, 100, 200);
    fl_resample_close(&axis);
}

int main(void)
{
    start_tests();
    RUN(test_answers);
    RUN(test_windows_and_weights);
    RUN(test_it_allocates_only_to_grow);
    return 0;
}
