/* A batch of two square images that a kernel makes after the copy, from maps that were sent, or
 * that are drawn on the device. With those that were sent the first is turned upside down, the
 * second flipped; bytes become halves. */
#include "check.h"

#include "fl_map_axis.h" /* before a fixture whose `ops` its arguments would shadow */

#include "transfer_fixture.h"

enum { SEEDS = 8 };

enum { EDGE = 3, PIXELS = EDGE * EDGE, IMAGES_AT = 192, MAPS_AT = 32, VALUES_AT = 96 };

static const fl_image_batch two_images = {.from_steps = {PIXELS, PIXELS, EDGE, 1},
                                          .to_steps = {PIXELS, PIXELS, EDGE, 1},
                                          .channels = 1,
                                          .height = EDGE,
                                          .width = EDGE,
                                          .element_bytes = 2,
                                          .map_numbers = 2 * EDGE,
                                          .values = 256};

static const int32_t two_maps[] = {2, 1, 0, 0, 1, 2, 0, 1, 2, 2, 1, 0};

/* Fills the slot from IMAGES_AT on, as the cast says. */
static void fill_images(char *slot, uint8_t first)
{
    char *images = slot + IMAGES_AT;
    memset(slot, 0, IMAGES_AT);
    for (int i = 0; i < 2 * PIXELS; i++) images[i] = (char)(first + i);
    memcpy(images + MAPS_AT, two_maps, sizeof two_maps);
    for (int v = 0; v < 256; v++)
        memcpy(images + VALUES_AT + 2 * v, &(uint16_t){(uint16_t)(v * 257)}, 2);
}

static void look_at_images(void *arg)
{
    const look *l = arg;
    const uint16_t *made = (const uint16_t *)(const void *)l->view;
    for (int i = 0; i < 2 * PIXELS; i++) {
        int image = i / PIXELS, y = i % PIXELS / EDGE, x = i % EDGE;
        int at =
            image * PIXELS + (image == 0 ? (EDGE - 1 - y) * EDGE + x : y * EDGE + EDGE - 1 - x);
        CHECK_INT(made[i], 257 * (uint8_t)(l->tag + at));
    }
}

/* The same images, each flipped or not: the device draws that from the row and the view of each, by
 * the operation in front of the values. */

enum { DRAWN_AT = 2048, OP = (int)sizeof(fl_image_op) };

static const fl_image_op flip = {
    .kind = FL_OP_HORIZONTAL_FLIP, .p = 0.5, .channels = 1, .out = {EDGE, EDGE}};
static const fl_map_batch two_draws = {.count = 1,
                                       .parts = {2 * EDGE, 2 * EDGE, 0, 0, 1},
                                       .in = {EDGE, EDGE},
                                       .out = {EDGE, EDGE},
                                       .seed = 3};

static fl_sample_key key_of(uint8_t tag, int image)
{
    return (fl_sample_key){3, tag * 1000 + image, tag, (uint8_t)(tag * image)};
}

static void fill_drawn(char *slot, uint8_t tag)
{
    char *images = slot + IMAGES_AT;
    fill_images(slot, tag);
    memmove(images + VALUES_AT + OP, images + VALUES_AT, 512);
    memcpy(images + VALUES_AT, &flip, sizeof flip);
    for (int i = 0; i < 2; i++) {
        const fl_sample_key key = key_of(tag, i);
        memcpy(images + MAPS_AT + 8 * i, &key.index, 8);
        images[MAPS_AT + 16 + i] = (char)key.view;
    }
}

static void look_at_drawn(void *arg)
{
    const look *l = arg;
    const uint16_t *made = (const uint16_t *)(const void *)l->view;
    for (int i = 0; i < 2 * PIXELS; i++) {
        const fl_sample_key key = key_of((uint8_t)l->tag, i / PIXELS);
        fl_image_params params;
        fl_op_draw_applied(&flip, &key, flip.out, &params);
        const int x = i % EDGE, at = params.is_applied ? i - x + EDGE - 1 - x : i;
        CHECK_INT(made[i], 257 * (uint8_t)(l->tag + at));
    }
}

static void make_images_of(fl_ring_config shape, bool is_drawn)
{
    enum { SENT = IMAGES_AT + VALUES_AT + OP + 512, ROUNDS = 6 };
    loop l;
    fl_transfer_cast cast = {.kind = FL_CAST_IMAGES,
                             .bytes = 2,
                             .from = IMAGES_AT,
                             .to = 1024,
                             .count = 2 * PIXELS,
                             .images = &two_images,
                             .maps = MAPS_AT,
                             .values = VALUES_AT,
                             .image_count = 2,
                             .draws = is_drawn ? &two_draws : NULL,
                             .has_views = true,
                             .drawn = DRAWN_AT};
    open_loop(&l, shape, 0);
    for (int64_t tag = 0; tag < ROUNDS; tag++) {
        fl_slot *slot;
        bool is_filled;
        void *transfer;
        device_buffer *buffer = get_buffer(&l.heap, BUFFER_BYTES, NULL);
        CHECK_INT(fl_pool_get(l.r.pool, SENT, &slot, NULL), FL_OK);
        CHECK_INT(ops->get(l.copy_stream, 1, &transfer, NULL), FL_OK);
        cast.epoch = (uint32_t)tag;
        ops->set_casts(transfer, &cast, 1);
        CHECK_INT(ops->set_buffer(transfer, buffer->memory, NULL, &is_filled, NULL), FL_OK);
        (is_drawn ? fill_drawn : fill_images)(fl_slot_data(slot), (uint8_t)tag);
        CHECK_INT(ops->copy(transfer, slot, SENT, NULL), FL_OK);
        CHECK_INT(ops->finish(transfer, slot, SENT, NULL, NULL), FL_OK);
        l.looks[tag] = (look){.view = fake_host_view(buffer->memory) + cast.to, .tag = tag};
        fake_launch(NULL, is_drawn ? look_at_drawn : look_at_images, &l.looks[tag]);
        drop_buffer(buffer);
    }
    fake_synchronize(NULL);
    close_loop(&l);
}

static void make_images(fl_ring_config shape)
{
    make_images_of(shape, false);
    make_images_of(shape, true);
}

static void test_images_are_made_behind_their_copy(void)
{
    fl_ring_config shape;
    for (int i = 0; next_shape(i, &shape); i++)
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            fake_set_order(seed == 0 ? FAKE_EAGER : seed == 1 ? FAKE_LAZY : FAKE_RANDOM, seed);
            make_images(shape);
        }
    CHECK(fake_is_clean());
}

int main(void)
{
    start_tests();
    RUN(test_images_are_made_behind_their_copy);
    return 0;
}
