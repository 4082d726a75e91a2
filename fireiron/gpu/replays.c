/* Replay calls: repeat the launches of a recorded call for other tensors with the same signature.

   `fireiron.gpu.replays` records a call and describes it, see `Replays.add`. This module looks it up and replays it; only the allocation of
   results calls PyTorch. Tensors are read by the C exchange API of DLPack, which PyTorch has since 2.10. This module checks no legality:
   calls that were not recorded, and calls with unusual arguments, are returned to the caller, which executes them normally.

   Sources: https://dmlc.github.io/dlpack/latest/c_api.html; CUDA Driver API, Execution Control, Memory Management, Context Management,
   Stream Management, Tensor Map Object Management. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MOST_ARRAYS = 32, MOST_RANK = 8, MOST_WORDS = 512, MOST_PARAMETERS = 96, MOST_MADE = 16, MOST_LAUNCHES = 16 };
enum { KEPT_MAPS = 8, KEPT_COUNTERS = 8, KEPT_CALLS = 1024, SLOTS = 4096 };
enum { MOST_ALIGNED = 64, MAP_BYTES = 128, MOST_DIMENSIONS = 5 };

/* ------------------------------------------------------------------------------------------------ DLPack and the driver */

enum { DLPACK_MAJOR = 1, ON_CUDA = 2 };

typedef struct { int32_t kind, number; } Device;
typedef struct { uint8_t code, bits; uint16_t lanes; } Element;
typedef struct { void *data; Device device; int32_t rank; Element element; int64_t *shape, *strides; uint64_t offset; } Tensor;
typedef struct {
    uint32_t major, minor;
    void *previous, *allocate, *to_managed, *from_managed;
    int (*read)(void *object, Tensor *out);
    int (*stream)(int32_t kind, int32_t device, void **out);
} Exchange;

typedef struct { int id; char pad[4]; int value; char rest[60]; } Attribute;
typedef struct { unsigned shape[6], shared; void *stream; Attribute *attributes; unsigned count; } Config;
enum { PROGRAMMATIC_SERIALIZATION = 6 };

static struct {
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*launch_with)(const Config *, void *, void **, void **);
    int (*encode)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int, int, int, int);
    int (*fill)(uint64_t, unsigned char, size_t, void *);
    int (*fill_rows)(uint64_t, size_t, unsigned char, size_t, size_t, void *);
    int (*current)(void **);
    int (*push)(void *);
    int (*pop)(void **);
    int (*capturing)(void *, int *);
} driver;

static const Exchange *exchange;
static PyObject *tensor_types;  /* the types whose objects are plain tensors */
static PyObject *is_recording_gradients, *dispatch_modes;
static PyObject *requires_grad, *is_neg;  /* names */

/* ------------------------------------------------------------------------------------------------ recorded calls */

enum { ADDRESS, WORD, MAP, COUNTER };

typedef struct { uint64_t address; int known; _Alignas(64) char bytes[MAP_BYTES]; } Encoded;
typedef struct {
    PyObject *of;  /* a Python function that encodes the map of an address; NULL for a tiled map, which is encoded here */
    int element, swizzle, promotion, rank, next;
    uint64_t extents[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
    uint32_t box[MOST_DIMENSIONS];
    Encoded kept[KEPT_MAPS];
} Map;

typedef struct { void *stream; uint64_t address; } Count;
typedef struct { PyObject *of; int known, next; Count kept[KEPT_COUNTERS]; } Counter;

typedef struct { int kind, place; uint64_t word; Map *map; Counter *counter; } Parameter;
typedef struct { int place; uint64_t offset; size_t width, height, pitch; } Fill;
typedef struct {
    void *function;
    unsigned shape[6], shared;
    int chained, parameters, fills;
    Parameter *parameter;
    Fill *fill;
} Launch;

typedef struct {
    int32_t device;
    void *context;
    int arrays, made, results, several, launches;
    PyObject *maker[MOST_MADE], *quick[MOST_MADE];
    int result[MOST_MADE];
    uint64_t span[MOST_ARRAYS];
    Launch launch[MOST_LAUNCHES];
} Recipe;

typedef struct {
    int users;
    uint64_t hash;
    PyObject *options;
    int words;
    int64_t *key;
    Recipe *recipe;  /* NULL for a call that is never replayed */
} Entry;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Entry **slot;
    int entries;
} Replays;

static void free_recipe(Recipe *recipe)
{
    if (recipe == NULL) return;
    for (int i = 0; i < recipe->made; i++) { Py_XDECREF(recipe->maker[i]); Py_XDECREF(recipe->quick[i]); }
    for (int i = 0; i < recipe->launches; i++) {
        Launch *launch = &recipe->launch[i];
        for (int j = 0; launch->parameter != NULL && j < launch->parameters; j++) {
            if (launch->parameter[j].map != NULL) Py_XDECREF(launch->parameter[j].map->of);
            free(launch->parameter[j].map);
            if (launch->parameter[j].counter != NULL) Py_XDECREF(launch->parameter[j].counter->of);
            PyMem_Free(launch->parameter[j].counter);
        }
        PyMem_Free(launch->parameter);
        PyMem_Free(launch->fill);
    }
    PyMem_Free(recipe);
}

static void release(Entry *entry)
{
    if (--entry->users) return;
    free_recipe(entry->recipe);
    Py_XDECREF(entry->options);
    PyMem_Free(entry->key);
    PyMem_Free(entry);
}

/* ------------------------------------------------------------------------------------------------ reading a call */

typedef struct {
    int inputs, outs, words, arrays, differentiated;
    int32_t device;
    uint64_t address[MOST_ARRAYS];  /* of tensors, the inputs first */
    int64_t word[MOST_WORDS];
} Call;

static int is_true(PyObject *answer)
{
    int yes = answer == Py_True;
    if (answer == NULL) { PyErr_Clear(); return 1; }
    Py_DECREF(answer);
    return yes;
}

static int is_plain_tensor(PyObject *object)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensor_types); i++)
        if ((PyObject *)Py_TYPE(object) == PyTuple_GET_ITEM(tensor_types, i)) return 1;
    return 0;
}

/* Whether autograd records operations on a tensor. */
static int is_differentiated(PyObject *tensor)
{
    return is_true(PyObject_GetAttr(tensor, requires_grad)) && is_true(PyObject_CallNoArgs(is_recording_gradients));
}

static int read_tensor(PyObject *object, Call *call)
{
    Tensor tensor;
    if (!is_plain_tensor(object) || call->arrays == MOST_ARRAYS) return 0;
    if (exchange->read(object, &tensor)) { PyErr_Clear(); return 0; }
    if (tensor.device.kind != ON_CUDA || tensor.rank > MOST_RANK || call->words + 2 + 2 * tensor.rank > MOST_WORDS) return 0;
    if (is_true(PyObject_CallMethodNoArgs(object, is_neg))) return 0;  /* it is lazily negated */
    call->differentiated = call->differentiated || is_differentiated(object);
    uint64_t address = (uint64_t)tensor.data + tensor.offset, low = address & (MOST_ALIGNED - 1);
    uint64_t aligned = low ? low & -low : MOST_ALIGNED;
    int64_t *word = call->word + call->words;
    *word++ = 1 | (int64_t)tensor.rank << 8 | (int64_t)tensor.element.code << 16 | (int64_t)tensor.element.bits << 24 |
              (int64_t)tensor.element.lanes << 32;
    *word++ = (int64_t)tensor.device.number << 32 | (int64_t)aligned;
    for (int dim = 0; dim < tensor.rank; dim++) {
        if (tensor.shape[dim] == 0) return 0;
        *word++ = tensor.shape[dim];
        *word++ = tensor.strides[dim];
    }
    call->words = (int)(word - call->word);
    call->device = tensor.device.number;
    call->address[call->arrays++] = address;
    return 1;
}

static int read_number(PyObject *object, Call *call)
{
    if (call->words + 2 > MOST_WORDS) return 0;
    int64_t *word = call->word + call->words;
    if (PyFloat_CheckExact(object)) {
        double value = PyFloat_AS_DOUBLE(object);
        word[0] = 2;
        memcpy(word + 1, &value, sizeof value);
    } else if (PyLong_CheckExact(object)) {
        int overflow;
        word[0] = 3;
        word[1] = PyLong_AsLongLongAndOverflow(object, &overflow);
        if (overflow) return 0;
    } else {
        return 0;
    }
    call->words += 2;
    return 1;
}

/* Read the arguments of a call: tensors, numbers, and outputs. These are None, a tensor, or a tuple or list of tensors. */
static int read_call(PyObject *out, PyObject *const *inputs, Py_ssize_t count, Call *call)
{
    call->words = call->arrays = call->outs = call->differentiated = 0;
    call->device = -1;
    call->word[call->words++] = (int64_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        int number = PyFloat_CheckExact(inputs[i]) || PyLong_CheckExact(inputs[i]);
        if (!(number ? read_number : read_tensor)(inputs[i], call)) return 0;
    }
    call->inputs = call->arrays;
    if (call->inputs == 0) return 0;
    if (out == Py_None) return 1;
    if (!PyTuple_CheckExact(out) && !PyList_CheckExact(out)) {
        call->outs = 1;
        return read_tensor(out, call);
    }
    call->outs = (int)PySequence_Fast_GET_SIZE(out);
    for (int i = 0; i < call->outs; i++)
        if (!read_tensor(PySequence_Fast_GET_ITEM(out, i), call)) return 0;
    return call->outs > 0;
}

static uint64_t mixed(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

static int hash_of(const Call *call, PyObject *options, uint64_t *hash)
{
    *hash = (uint64_t)call->outs;
    for (int i = 0; i < call->words; i++) *hash = mixed(*hash, (uint64_t)call->word[i]);
    if (options == Py_None) return 0;
    Py_hash_t own = PyObject_Hash(options);
    *hash = mixed(*hash, (uint64_t)own);
    return own == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Return the slot of a call in the table: the slot of its entry, or a free slot. */
static Entry **place_of(Replays *self, const Call *call, PyObject *options, uint64_t hash)
{
    for (uint64_t at = hash;; at++) {
        Entry **place = &self->slot[at % SLOTS], *entry = *place;
        if (entry == NULL) return place;
        if (entry->hash != hash || entry->words != call->words) continue;
        if (memcmp(entry->key, call->word, sizeof(int64_t) * (size_t)call->words)) continue;
        if (entry->options == options) return place;
        int same = PyObject_RichCompareBool(entry->options, options, Py_EQ);
        if (same < 0) PyErr_Clear();
        if (same > 0) return place;
    }
}

/* ------------------------------------------------------------------------------------------------ replaying */

static int apart(const Recipe *recipe, const Call *call)
{
    for (int out = call->inputs; out < call->inputs + call->outs; out++)
        for (int other = 0; other < out; other++)
            if (call->address[out] < call->address[other] + recipe->span[other] &&
                call->address[other] < call->address[out] + recipe->span[out])
                return 0;
    return 1;
}

static void *kept_map(Map *map, uint64_t address)
{
    for (int i = 0; i < KEPT_MAPS; i++)
        if (map->kept[i].known && map->kept[i].address == address) return map->kept[i].bytes;
    return NULL;
}

/* Encode a map in Python, unless it is kept. */
static int encode_by_python(Map *map, uint64_t address)
{
    if (kept_map(map, address) != NULL) return 1;
    PyObject *bytes = PyObject_CallFunction(map->of, "K", (unsigned long long)address);
    int right = bytes != NULL && PyBytes_CheckExact(bytes) && PyBytes_GET_SIZE(bytes) == MAP_BYTES;
    if (right) {
        Encoded *found = &map->kept[map->next];
        memcpy(found->bytes, PyBytes_AS_STRING(bytes), MAP_BYTES);
        found->known = 1;
        found->address = address;
        map->next = (map->next + 1) % KEPT_MAPS;
    }
    Py_XDECREF(bytes);
    return right;
}

static void *encoded(Map *map, uint64_t address)
{
    void *kept = kept_map(map, address);
    if (kept != NULL || map->of != NULL) return kept;
    static const uint32_t ones[MOST_DIMENSIONS] = {1, 1, 1, 1, 1};
    Encoded *found = &map->kept[map->next];
    found->known = 0;
    if (driver.encode(found->bytes, map->element, (uint32_t)map->rank, (void *)address, map->extents, map->strides, map->box, ones, 0,
                      map->swizzle, map->promotion, 0))
        return NULL;
    found->known = 1;
    found->address = address;
    map->next = (map->next + 1) % KEPT_MAPS;
    return found->bytes;
}

/* Find the counter of a stream. For captured streams, and for streams that differ between threads, Python is called. */
static int count(Counter *counter, void *stream, uint64_t *address)
{
    int status = 1, plain = stream != (void *)2 && driver.capturing(stream, &status) == 0 && status == 0;
    for (int i = 0; plain && i < counter->known; i++)
        if (counter->kept[i].stream == stream) { *address = counter->kept[i].address; return 1; }
    PyObject *found = PyObject_CallFunction(counter->of, "K", (unsigned long long)(uintptr_t)stream);
    if (found == NULL) return 0;
    *address = PyLong_AsUnsignedLongLong(found);
    Py_DECREF(found);
    if (PyErr_Occurred()) return 0;
    if (plain) {
        counter->kept[counter->next] = (Count){stream, *address};
        counter->next = (counter->next + 1) % KEPT_COUNTERS;
        if (counter->known < KEPT_COUNTERS) counter->known++;
    }
    return 1;
}

static int fire(const Launch *launch, const Call *call, const uint64_t *counts, void *stream)
{
    uint64_t slot[MOST_PARAMETERS];
    void *table[MOST_PARAMETERS];
    for (int i = 0; i < launch->fills; i++) {
        const Fill *fill = &launch->fill[i];
        uint64_t start = call->address[fill->place] + fill->offset;
        if (fill->height == 1 ? driver.fill(start, 0, fill->width, stream)
                              : driver.fill_rows(start, fill->pitch, 0, fill->width, fill->height, stream))
            return 0;
    }
    for (int i = 0; i < launch->parameters; i++) {
        const Parameter *one = &launch->parameter[i];
        table[i] = &slot[i];
        if (one->kind == WORD) slot[i] = one->word;
        else if (one->kind == COUNTER) slot[i] = *counts++;
        else slot[i] = call->address[one->place] + one->word;
        if (one->kind == MAP && (table[i] = encoded(one->map, slot[i])) == NULL) return 0;
    }
    const unsigned *shape = launch->shape;
    if (!launch->chained)
        return !driver.launch(launch->function, shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], launch->shared, stream, table,
                              NULL);
    Attribute attribute = {PROGRAMMATIC_SERIALIZATION, {0}, 1, {0}};
    Config config = {{0}, launch->shared, stream, &attribute, 1};
    memcpy(config.shape, shape, sizeof config.shape);
    return !driver.launch_with(&config, launch->function, table, NULL);
}

/* Execute all launches in the context of the tensors. No Python code runs between them. */
static int fire_all(const Recipe *recipe, const Call *call, const uint64_t *counts, void *stream)
{
    void *current = NULL, *popped;
    int there = driver.current(&current) == 0 && current == recipe->context, done = 1;
    if (!there && driver.push(recipe->context)) return 0;
    for (int i = 0; done && i < recipe->launches; i++) {
        done = fire(&recipe->launch[i], call, counts, stream);
        for (int j = 0; j < recipe->launch[i].parameters; j++) counts += recipe->launch[i].parameter[j].kind == COUNTER;
    }
    if (!there) driver.pop(&popped);
    return done;
}

static int count_all(const Recipe *recipe, void *stream, uint64_t *counts)
{
    for (int i = 0; i < recipe->launches; i++)
        for (int j = 0; j < recipe->launch[i].parameters; j++)
            if (recipe->launch[i].parameter[j].kind == COUNTER && !count(recipe->launch[i].parameter[j].counter, stream, counts++)) return 0;
    return 1;
}

/* Encode the maps that Python encodes, before the launches. */
static int encode_all(const Recipe *recipe, const Call *call)
{
    for (int i = 0; i < recipe->launches; i++)
        for (int j = 0; j < recipe->launch[i].parameters; j++) {
            const Parameter *one = &recipe->launch[i].parameter[j];
            if (one->kind == MAP && one->map->of != NULL && !encode_by_python(one->map, call->address[one->place] + one->word)) return 0;
        }
    return 1;
}

/* Whether quick functions may allocate: on the GPU of the current context, and if nothing watches PyTorch's operators. */
static int is_quick(const Recipe *recipe)
{
    void *current = NULL;
    if (recipe->made == 0 || dispatch_modes == NULL || driver.current(&current) || current != recipe->context) return 0;
    PyObject *modes = PyObject_CallNoArgs(dispatch_modes);
    int none = modes != NULL && PyLong_CheckExact(modes) && PyLong_AsLong(modes) == 0;
    if (modes == NULL) PyErr_Clear();
    Py_XDECREF(modes);
    return none;
}

static int make_all(const Recipe *recipe, Call *call, PyObject **made)
{
    int quick = is_quick(recipe);
    for (int i = 0; i < recipe->made; i++) {
        Tensor tensor;
        made[i] = PyObject_CallNoArgs(quick && recipe->quick[i] != NULL ? recipe->quick[i] : recipe->maker[i]);
        if (made[i] == NULL || exchange->read(made[i], &tensor)) return 0;
        call->address[call->arrays++] = (uint64_t)tensor.data + tensor.offset;
    }
    return 1;
}

static PyObject *result_of(const Recipe *recipe, PyObject *out, PyObject *const *made)
{
    if (recipe->results == 0) return Py_NewRef(out);
    if (!recipe->several) return Py_NewRef(made[recipe->result[0]]);
    PyObject *all = PyTuple_New(recipe->results);
    for (int i = 0; all != NULL && i < recipe->results; i++) PyTuple_SET_ITEM(all, i, Py_NewRef(made[recipe->result[i]]));
    return all;
}

/* Return the result; None if the call must be executed normally; NULL with an error if there is no memory. */
static PyObject *replayed(const Recipe *recipe, Call *call, PyObject *out)
{
    PyObject *made[MOST_MADE] = {0}, *result = NULL;
    uint64_t counts[MOST_LAUNCHES];
    void *stream = NULL;
    if (call->device != recipe->device || !apart(recipe, call)) Py_RETURN_NONE;
    if (make_all(recipe, call, made)) {
        int ready = exchange->stream(ON_CUDA, recipe->device, &stream) == 0;
        if (ready && encode_all(recipe, call) && count_all(recipe, stream, counts) && fire_all(recipe, call, counts, stream)) {
            result = result_of(recipe, out, made);
        } else {
            PyErr_Clear();
            result = Py_NewRef(Py_None);
        }
    }
    for (int i = 0; i < recipe->made; i++) Py_XDECREF(made[i]);
    return result;
}

/* replays(options, out, *inputs): return the result; None if the call is never replayed; NotImplemented if it is not recorded yet; Ellipsis
   if autograd records operations on the tensors, which are otherwise plain. */
static PyObject *called(PyObject *object, PyObject *const *given, size_t flags, PyObject *names)
{
    Replays *self = (Replays *)object;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    Call call;
    uint64_t hash;
    if (names != NULL || count < 2) return PyErr_Format(PyExc_TypeError, "replays(options, out, *inputs)");
    if (!read_call(given[1], given + 2, count - 2, &call)) Py_RETURN_NONE;
    if (call.differentiated) return Py_NewRef(Py_Ellipsis);
    if (hash_of(&call, given[0], &hash)) { PyErr_Clear(); Py_RETURN_NONE; }
    Entry *entry = *place_of(self, &call, given[0], hash);
    if (entry == NULL) Py_RETURN_NOTIMPLEMENTED;
    if (entry->recipe == NULL) Py_RETURN_NONE;
    entry->users++;  /* allocating a result may run other code, which may remove this entry */
    PyObject *result = replayed(entry->recipe, &call, given[1]);
    release(entry);
    return result;
}

/* ------------------------------------------------------------------------------------------------ reading a description */

static int numbers_into(PyObject *tuple, int most, uint64_t *into, int *count)
{
    Py_ssize_t size = PyTuple_Check(tuple) ? PyTuple_GET_SIZE(tuple) : most + 1;
    if (size > most) return -1;
    for (Py_ssize_t i = 0; i < size; i++) into[i] = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(tuple, i));
    *count = (int)size;
    return PyErr_Occurred() ? -1 : 0;
}

static int map_from(PyObject *description, Parameter *parameter)
{
    PyObject *extents, *strides, *box;
    uint64_t sizes[MOST_DIMENSIONS];
    int between;
    Map *map = parameter->map = aligned_alloc(64, sizeof(Map));
    if (map == NULL) return -1;
    memset(map, 0, sizeof *map);
    if (PyTuple_GET_SIZE(description) == 4) {
        if (!PyArg_ParseTuple(description, "iiKO", &parameter->kind, &parameter->place, &parameter->word, &map->of)) return -1;
        Py_INCREF(map->of);
        return 0;
    }
    if (driver.encode == NULL) return -1;
    if (!PyArg_ParseTuple(description, "iiKiiiOOO", &parameter->kind, &parameter->place, &parameter->word, &map->element, &map->swizzle,
                          &map->promotion, &extents, &strides, &box))
        return -1;
    if (numbers_into(extents, MOST_DIMENSIONS, map->extents, &map->rank) || numbers_into(strides, MOST_DIMENSIONS, map->strides, &between) ||
        numbers_into(box, MOST_DIMENSIONS, sizes, &between))
        return -1;
    for (int dim = 0; dim < map->rank; dim++) map->box[dim] = (uint32_t)sizes[dim];
    return 0;
}

static int counter_from(PyObject *description, Parameter *parameter)
{
    PyObject *of;
    if (driver.capturing == NULL || !PyArg_ParseTuple(description, "iO", &parameter->kind, &of)) return -1;
    parameter->counter = PyMem_Calloc(1, sizeof(Counter));
    if (parameter->counter == NULL) return -1;
    parameter->counter->of = Py_NewRef(of);
    return 0;
}

static int parameter_from(PyObject *description, int arrays, Parameter *parameter)
{
    long kind = PyTuple_Check(description) && PyTuple_GET_SIZE(description) ? PyLong_AsLong(PyTuple_GET_ITEM(description, 0)) : -1;
    int wrong = -1;
    if (kind == ADDRESS) wrong = !PyArg_ParseTuple(description, "iiK", &parameter->kind, &parameter->place, &parameter->word);
    if (kind == WORD) wrong = !PyArg_ParseTuple(description, "iK", &parameter->kind, &parameter->word);
    if (kind == MAP) wrong = map_from(description, parameter);
    if (kind == COUNTER) wrong = counter_from(description, parameter);
    return wrong || parameter->place < 0 || parameter->place >= arrays;
}

static int fill_from(PyObject *description, int arrays, Fill *fill)
{
    unsigned long long offset, width, height, pitch;
    if (driver.fill == NULL || driver.fill_rows == NULL) return -1;
    if (!PyArg_ParseTuple(description, "iKKKK", &fill->place, &offset, &width, &height, &pitch)) return -1;
    fill->offset = offset, fill->width = width, fill->height = height, fill->pitch = pitch;
    return fill->place < 0 || fill->place >= arrays;
}

static int launch_from(PyObject *description, int arrays, Launch *launch, int *counters)
{
    PyObject *shape, *parameters, *fills;
    unsigned long long function;
    uint64_t sizes[6];
    int given;
    if (!PyArg_ParseTuple(description, "KOIpO!O!", &function, &shape, &launch->shared, &launch->chained, &PyTuple_Type, &parameters, &PyTuple_Type,
                          &fills))
        return -1;
    if (numbers_into(shape, 6, sizes, &given) || given != 6 || PyTuple_GET_SIZE(parameters) > MOST_PARAMETERS) return -1;
    if (launch->chained && driver.launch_with == NULL) return -1;
    launch->function = (void *)(uintptr_t)function;
    for (int i = 0; i < 6; i++) launch->shape[i] = (unsigned)sizes[i];
    launch->parameter = PyMem_Calloc((size_t)PyTuple_GET_SIZE(parameters) + 1, sizeof(Parameter));
    launch->fill = PyMem_Calloc((size_t)PyTuple_GET_SIZE(fills) + 1, sizeof(Fill));
    if (launch->parameter == NULL || launch->fill == NULL) return -1;
    for (; launch->parameters < PyTuple_GET_SIZE(parameters); launch->parameters++) {
        Parameter *one = &launch->parameter[launch->parameters];
        if (parameter_from(PyTuple_GET_ITEM(parameters, launch->parameters), arrays, one)) {
            launch->parameters++;
            return -1;
        }
        *counters += one->kind == COUNTER;
    }
    for (; launch->fills < PyTuple_GET_SIZE(fills); launch->fills++)
        if (fill_from(PyTuple_GET_ITEM(fills, launch->fills), arrays, &launch->fill[launch->fills])) return -1;
    return 0;
}

/* Read a recipe from the description by `fireiron.gpu.replays`: (device, context, makers, results, several, spans, launches). A maker is a
   function that allocates a tensor, or a pair with a quick function, which allocates the same tensor on the GPU of the current context. */
static Recipe *recipe_from(PyObject *description)
{
    PyObject *makers, *results, *spans, *launches;
    unsigned long long context;
    int counters = 0;
    uint64_t places[MOST_MADE];
    Recipe *recipe = PyMem_Calloc(1, sizeof(Recipe));
    if (recipe == NULL) return (Recipe *)PyErr_NoMemory();
    if (!PyArg_ParseTuple(description, "iKO!O!pO!O!", &recipe->device, &context, &PyTuple_Type, &makers, &PyTuple_Type, &results, &recipe->several,
                          &PyTuple_Type, &spans, &PyTuple_Type, &launches))
        goto wrong;
    recipe->context = (void *)(uintptr_t)context;
    if (numbers_into(spans, MOST_ARRAYS, recipe->span, &recipe->arrays) || numbers_into(results, MOST_MADE, places, &recipe->results)) goto wrong;
    if (PyTuple_GET_SIZE(makers) > MOST_MADE || PyTuple_GET_SIZE(launches) > MOST_LAUNCHES) goto wrong;
    for (; recipe->made < PyTuple_GET_SIZE(makers); recipe->made++) {
        PyObject *maker = PyTuple_GET_ITEM(makers, recipe->made);
        int several = PyTuple_CheckExact(maker) && PyTuple_GET_SIZE(maker) == 2;
        recipe->maker[recipe->made] = Py_NewRef(several ? PyTuple_GET_ITEM(maker, 0) : maker);
        recipe->quick[recipe->made] = several ? Py_NewRef(PyTuple_GET_ITEM(maker, 1)) : NULL;
    }
    for (int i = 0; i < recipe->results; i++) {
        if (places[i] >= (uint64_t)recipe->made) goto wrong;
        recipe->result[i] = (int)places[i];
    }
    for (; recipe->launches < PyTuple_GET_SIZE(launches);) {
        PyObject *one = PyTuple_GET_ITEM(launches, recipe->launches);
        if (launch_from(one, recipe->arrays, &recipe->launch[recipe->launches++], &counters)) goto wrong;
    }
    if (counters <= MOST_LAUNCHES) return recipe;
wrong:
    free_recipe(recipe);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the description is not that of a call that can be replayed");
    return NULL;
}

static void forget(Replays *self)
{
    for (int i = 0; i < SLOTS; i++) {
        Entry *entry = self->slot[i];
        self->slot[i] = NULL;
        if (entry != NULL) release(entry);
    }
    self->entries = 0;
}

static int enter(Replays *self, const Call *call, PyObject *options, Recipe *recipe)
{
    uint64_t hash;
    Entry *entry = PyMem_Calloc(1, sizeof(Entry));
    if (entry == NULL || hash_of(call, options, &hash)) { PyMem_Free(entry); free_recipe(recipe); return -1; }
    *entry = (Entry){1, hash, Py_NewRef(options), call->words, PyMem_Malloc(sizeof(int64_t) * (size_t)call->words), recipe};
    if (entry->key == NULL) { release(entry); return -1; }
    memcpy(entry->key, call->word, sizeof(int64_t) * (size_t)call->words);
    if (self->entries >= KEPT_CALLS) forget(self);
    Entry **place = place_of(self, call, options, hash);
    if (*place != NULL) release(*place);
    else self->entries++;
    *place = entry;
    return 0;
}

PyDoc_STRVAR(add_doc, "add(options, out, inputs, recipe): keep a call; without a recipe, that it is never replayed. "
                      "Return whether it is stored: a call that cannot be distinguished from others is not.");

static PyObject *add(PyObject *object, PyObject *given)
{
    PyObject *options, *out, *inputs, *description;
    Call call;
    Recipe *recipe = NULL;
    if (!PyArg_ParseTuple(given, "OOO!O", &options, &out, &PyTuple_Type, &inputs, &description)) return NULL;
    PyObject *const *items = &PyTuple_GET_ITEM(inputs, 0);
    if (!read_call(out, items, PyTuple_GET_SIZE(inputs), &call) || call.differentiated) Py_RETURN_FALSE;
    if (description != Py_None && (recipe = recipe_from(description)) == NULL) return NULL;
    if (recipe != NULL && recipe->arrays != call.arrays + recipe->made) {
        int described = recipe->arrays, made = recipe->made;
        free_recipe(recipe);
        return PyErr_Format(PyExc_ValueError, "the description has spans of %d arrays, but the call has %d", described, call.arrays + made);
    }
    if (enter((Replays *)object, &call, options, recipe)) return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(clear_doc, "clear(): forget all calls.");

static PyObject *clear(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    forget((Replays *)object);
    Py_RETURN_NONE;
}

static PyObject *make(PyTypeObject *type, PyObject *given, PyObject *named)
{
    (void)given, (void)named;
    Replays *self = (Replays *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->vectorcall = called;
    self->slot = PyMem_Calloc(SLOTS, sizeof(Entry *));
    if (self->slot == NULL) { Py_DECREF(self); return PyErr_NoMemory(); }
    return (PyObject *)self;
}

static void unmake(PyObject *object)
{
    Replays *self = (Replays *)object;
    if (self->slot != NULL) forget(self);
    PyMem_Free(self->slot);
    Py_TYPE(object)->tp_free(object);
}

static Py_ssize_t length(PyObject *object) { return ((Replays *)object)->entries; }

static PyMethodDef methods[] = {{"add", add, METH_VARARGS, add_doc}, {"clear", clear, METH_NOARGS, clear_doc}, {NULL, NULL, 0, NULL}};
static PySequenceMethods as_sequence = {.sq_length = length};
static PyTypeObject replays_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fireiron_replays.Replays",
    .tp_doc = "Calls of one function, by options and by the signatures of tensors.",
    .tp_basicsize = sizeof(Replays),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Replays, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_methods = methods,
    .tp_as_sequence = &as_sequence,
    .tp_new = make,
    .tp_dealloc = unmake,
};

/* ------------------------------------------------------------------------------------------------ the module */

PyDoc_STRVAR(configure_doc, "configure(exchange, types, gradients, functions, modes=None): DLPack's exchange API in a capsule, the types of "
                            "plain tensors, whether gradients are on, addresses of the driver's functions, and the number of dispatch modes.");

static PyObject *configure(PyObject *module, PyObject *given)
{
    (void)module;
    PyObject *capsule, *types, *gradients, *modes = Py_None;
    unsigned long long at[9];
    if (!PyArg_ParseTuple(given, "OO!O(KKKKKKKKK)|O", &capsule, &PyTuple_Type, &types, &gradients, at, at + 1, at + 2, at + 3,
                          at + 4, at + 5, at + 6, at + 7, at + 8, &modes))
        return NULL;
    const Exchange *found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (found == NULL) return NULL;
    if (found->major != DLPACK_MAJOR || found->read == NULL || found->stream == NULL)
        return PyErr_Format(PyExc_ValueError, "version %u.%u of DLPack's exchange API is not supported", found->major, found->minor);
    if (!at[0] || !at[5] || !at[6] || !at[7]) return PyErr_Format(PyExc_ValueError, "the driver lacks functions");
    exchange = found;
    memcpy(&driver, at, sizeof driver);
    Py_XSETREF(tensor_types, Py_NewRef(types));
    Py_XSETREF(is_recording_gradients, Py_NewRef(gradients));
    Py_XSETREF(dispatch_modes, modes == Py_None ? NULL : Py_NewRef(modes));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {{"configure", configure, METH_VARARGS, configure_doc}, {NULL, NULL, 0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "fireiron_replays", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit_fireiron_replays(void)
{
    _Static_assert(sizeof driver == 9 * sizeof(unsigned long long), "one address for each function");
    requires_grad = PyUnicode_InternFromString("requires_grad");
    is_neg = PyUnicode_InternFromString("is_neg");
    if (requires_grad == NULL || is_neg == NULL || PyType_Ready(&replays_type)) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddObjectRef(module, "Replays", (PyObject *)&replays_type)) Py_CLEAR(module);
    return module;
}
