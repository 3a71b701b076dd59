/*
 * What is worth C: loops over messages, and what is done for each of them, a million times a second.
 *
 * Everything here is also done in Python, by whoever calls it. A function that meets what it does not know (a subclass,
 * another kind of buffer, a text that is not ASCII, a key that is not allowed) returns None, and Python decides, which
 * also words the errors. So there is one set of rules, and this file can be deleted.
 *
 * Columns are little-endian, so it is built for such machines only.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdint.h>
#include <string.h>
#include <time.h>

#if PY_BIG_ENDIAN
#error "columns are little-endian"
#endif

#define AHEAD 8 /* items whose memory is fetched before their turn: they lie all over the heap */

/* ---- CRC-32, eight bytes at a time: keys are too short for vector instructions */

static uint32_t crc_table[8][256];

static void
make_crc_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        }
        crc_table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++) {
        for (int k = 1; k < 8; k++) {
            uint32_t crc = crc_table[k - 1][i];
            crc_table[k][i] = crc >> 8 ^ crc_table[0][crc & 255];
        }
    }
}

static uint32_t
crc_of(const char *text, Py_ssize_t size)
{
    const unsigned char *at = (const unsigned char *)text;
    uint32_t crc = ~0u;
    for (; size >= 8; size -= 8, at += 8) {
        uint32_t low, high;
        memcpy(&low, at, 4);
        memcpy(&high, at + 4, 4);
        low ^= crc;
        crc = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255] ^ crc_table[5][low >> 16 & 255] ^
              crc_table[4][low >> 24] ^ crc_table[3][high & 255] ^ crc_table[2][high >> 8 & 255] ^
              crc_table[1][high >> 16 & 255] ^ crc_table[0][high >> 24];
    }
    for (; size > 0; size--) {
        crc = crc_table[0][(crc ^ *at++) & 255] ^ crc >> 8;
    }
    return ~crc;
}

/* ---- sending */

PyDoc_STRVAR(join_bodies_doc, "join_bodies(list of bytes) -> (lengths as u32, the bytes in a row) or None");

static PyObject *
join_bodies(PyObject *module, PyObject *bodies)
{
    if (!PyList_CheckExact(bodies)) {
        Py_RETURN_NONE;
    }
    Py_ssize_t count = PyList_GET_SIZE(bodies), size = 0;
    PyObject *lengths = PyBytes_FromStringAndSize(NULL, count * 4);
    if (lengths == NULL) {
        return NULL;
    }
    uint32_t *length = (uint32_t *)PyBytes_AS_STRING(lengths);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *body = PyList_GET_ITEM(bodies, i);
        if (i + AHEAD < count) {
            __builtin_prefetch(PyList_GET_ITEM(bodies, i + AHEAD));
        }
        if (!PyBytes_CheckExact(body) || PyBytes_GET_SIZE(body) > UINT32_MAX) {
            Py_DECREF(lengths);
            Py_RETURN_NONE;
        }
        length[i] = (uint32_t)PyBytes_GET_SIZE(body);
        if (PyBytes_GET_SIZE(body) > PY_SSIZE_T_MAX - size) {
            Py_DECREF(lengths);
            return PyErr_NoMemory();
        }
        size += length[i];
    }
    PyObject *row = PyBytes_FromStringAndSize(NULL, size);
    if (row == NULL) {
        Py_DECREF(lengths);
        return NULL;
    }
    /* Nothing runs in between that could change the list: no code of Python's is called. */
    char *to = PyBytes_AS_STRING(row);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i + AHEAD < count) {
            const char *later = PyBytes_AS_STRING(PyList_GET_ITEM(bodies, i + AHEAD));
            __builtin_prefetch(later);
            __builtin_prefetch(later + 64);
        }
        memcpy(to, PyBytes_AS_STRING(PyList_GET_ITEM(bodies, i)), length[i]);
        to += length[i];
    }
    return Py_BuildValue("(NN)", lengths, row);
}

PyDoc_STRVAR(pack_keys_doc,
             "pack_keys(list of tuples of one key) -> (lengths as u32, the keys in a row, their CRC-32 as u32) or None");

static PyObject *
pack_keys(PyObject *module, PyObject *rows)
{
    if (!PyList_CheckExact(rows)) {
        Py_RETURN_NONE;
    }
    Py_ssize_t count = PyList_GET_SIZE(rows), size = 0;
    PyObject *lengths = PyBytes_FromStringAndSize(NULL, count * 4);
    PyObject *hashes = PyBytes_FromStringAndSize(NULL, count * 4);
    PyObject *texts = NULL;
    if (lengths == NULL || hashes == NULL) {
        goto failed;
    }
    uint32_t *length = (uint32_t *)PyBytes_AS_STRING(lengths), *hash = (uint32_t *)PyBytes_AS_STRING(hashes);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *row = PyList_GET_ITEM(rows, i);
        if (i + 2 * AHEAD < count) {
            __builtin_prefetch(PyList_GET_ITEM(rows, i + 2 * AHEAD));
        }
        if (i + AHEAD < count) {
            PyObject *later = PyList_GET_ITEM(rows, i + AHEAD);
            if (PyTuple_CheckExact(later) && PyTuple_GET_SIZE(later) == 1) {
                __builtin_prefetch(PyTuple_GET_ITEM(later, 0));
            }
        }
        if (!PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != 1) {
            goto unknown;
        }
        PyObject *key = PyTuple_GET_ITEM(row, 0);
        if (!PyUnicode_CheckExact(key) || !PyUnicode_IS_COMPACT_ASCII(key)) {
            goto unknown;
        }
        const char *text = (const char *)PyUnicode_1BYTE_DATA(key);
        Py_ssize_t long_as = PyUnicode_GET_LENGTH(key);
        if (long_as == 0 || long_as > UINT32_MAX || memchr(text, ' ', (size_t)long_as) != NULL) {
            goto unknown;
        }
        length[i] = (uint32_t)long_as;
        hash[i] = crc_of(text, long_as);
        if (long_as > PY_SSIZE_T_MAX - size) {
            goto unknown;
        }
        size += long_as;
    }
    texts = PyBytes_FromStringAndSize(NULL, size);
    if (texts == NULL) {
        goto failed;
    }
    char *to = PyBytes_AS_STRING(texts);
    for (Py_ssize_t i = 0; i < count; i++) {
        memcpy(to, PyUnicode_1BYTE_DATA(PyTuple_GET_ITEM(PyList_GET_ITEM(rows, i), 0)), length[i]);
        to += length[i];
    }
    return Py_BuildValue("(NNN)", lengths, texts, hashes);
unknown:
    Py_DECREF(lengths);
    Py_DECREF(hashes);
    Py_RETURN_NONE;
failed:
    Py_XDECREF(lengths);
    Py_XDECREF(hashes);
    return NULL;
}

PyDoc_STRVAR(hash_texts_doc,
             "hash_texts(texts in a row, lengths as u32) -> CRC-32 of each as u32, without those of empty texts and of\n"
             "a text that equals the one before it");

static int get_column(PyObject *column, Py_ssize_t width, Py_buffer *view);

static PyObject *
hash_texts(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyBytes_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, hash_texts_doc);
        return NULL;
    }
    Py_buffer view;
    if (get_column(args[1], 4, &view) < 0) {
        return NULL;
    }
    const uint32_t *length = view.buf;
    const char *text = PyBytes_AS_STRING(args[0]), *before = text;
    Py_ssize_t count = view.len / 4, left = PyBytes_GET_SIZE(args[0]), made = 0, size_before = 0;
    PyObject *hashes = PyBytes_FromStringAndSize(NULL, count * 4);
    uint32_t *hash = hashes == NULL ? NULL : (uint32_t *)PyBytes_AS_STRING(hashes);
    for (Py_ssize_t i = 0; hashes != NULL && i < count; i++) {
        Py_ssize_t size = length[i];
        if (size > left) {
            PyErr_SetString(PyExc_ValueError, "the texts are shorter than their lengths");
            Py_CLEAR(hashes);
            break;
        }
        if (size && (size != size_before || memcmp(text, before, (size_t)size) != 0)) {
            hash[made++] = crc_of(text, size);
        }
        before = text;
        size_before = size;
        text += size;
        left -= size;
    }
    PyBuffer_Release(&view);
    if (hashes != NULL && made < count) {
        _PyBytes_Resize(&hashes, made * 4);
    }
    return hashes;
}

PyDoc_STRVAR(pack_codes_doc, "pack_codes(list of values, dictionary of their codes) -> codes as u16 or None");

static PyObject *
pack_codes(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyList_CheckExact(args[0]) || !PyDict_CheckExact(args[1])) {
        Py_RETURN_NONE;
    }
    PyObject *values = args[0];
    Py_ssize_t count = PyList_GET_SIZE(values);
    PyObject *codes = PyBytes_FromStringAndSize(NULL, count * 2);
    if (codes == NULL) {
        return NULL;
    }
    uint16_t *to = (uint16_t *)PyBytes_AS_STRING(codes);
    for (Py_ssize_t i = 0; i < count; i++) {
        /* A key of the dictionary may have a comparison of its own, which could change the list. */
        PyObject *value = i < PyList_GET_SIZE(values) ? PyList_GET_ITEM(values, i) : NULL;
        if (value == NULL || (value != Py_None && !PyUnicode_CheckExact(value))) {
            goto unknown;
        }
        Py_INCREF(value);
        PyObject *code = PyDict_GetItemWithError(args[1], value);
        Py_DECREF(value);
        if (code == NULL || !PyLong_CheckExact(code)) {
            goto unknown;
        }
        long number = PyLong_AsLong(code);
        if (number < 0 || number > UINT16_MAX) {
            goto unknown;
        }
        to[i] = (uint16_t)number;
    }
    return codes;
unknown:
    PyErr_Clear();
    Py_DECREF(codes);
    Py_RETURN_NONE;
}

/* ---- receiving */

/* The numbers of so many bytes in a column; -1 with an exception set if these are none. */
static int
get_column(PyObject *column, Py_ssize_t width, Py_buffer *view)
{
    if (PyObject_GetBuffer(column, view, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    if (view->len % width || (view->len && (uintptr_t)view->buf % (size_t)width)) { /* nothing may lie anywhere */
        PyBuffer_Release(view);
        PyErr_Format(PyExc_ValueError, "the column is not whole numbers of %zd bytes", width);
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(highest_doc, "highest(codes as u16) -> the highest of them, 0 if there is none");

static PyObject *
highest(PyObject *module, PyObject *column)
{
    Py_buffer view;
    if (get_column(column, 2, &view) < 0) {
        return NULL;
    }
    const uint16_t *code = view.buf;
    uint16_t found = 0;
    for (Py_ssize_t i = 0; i < view.len / 2; i++) {
        found = code[i] > found ? code[i] : found;
    }
    PyBuffer_Release(&view);
    return PyLong_FromLong(found);
}

PyDoc_STRVAR(tally_doc, "tally(lengths as u32) -> (their sum, how many of them are 0)");

static PyObject *
tally(PyObject *module, PyObject *column)
{
    Py_buffer view;
    if (get_column(column, 4, &view) < 0) {
        return NULL;
    }
    const uint32_t *length = view.buf;
    uint64_t sum = 0;
    Py_ssize_t zeros = 0;
    for (Py_ssize_t i = 0; i < view.len / 4; i++) {
        sum += length[i];
        zeros += !length[i];
    }
    PyBuffer_Release(&view);
    return Py_BuildValue("(Kn)", (unsigned long long)sum, zeros);
}

/* Where instances of a class hold a slot; -1 with an exception set if that is none for an object. */
static Py_ssize_t
place_of(PyObject *cls, const char *name)
{
    PyObject *slot = PyObject_GetAttrString(cls, name);
    if (slot == NULL) {
        return -1;
    }
    Py_ssize_t place = -1;
    if (Py_IS_TYPE(slot, &PyMemberDescr_Type) && PyDescr_TYPE(slot) == (PyTypeObject *)cls) {
        const PyMemberDef *member = ((PyMemberDescrObject *)slot)->d_member;
        place = member->type == T_OBJECT_EX ? member->offset : -1;
    }
    Py_DECREF(slot);
    if (place < 0) {
        PyErr_Format(PyExc_TypeError, "%R has no slot %s of its own", cls, name);
    }
    return place;
}

#define SLOT(message, place) (*(PyObject **)((char *)(message) + (place)))

PyDoc_STRVAR(make_messages_doc,
             "make_messages(class, origin, bodies, lengths as u32, first, end, where the first begins)\n"
             "    -> (messages, where the next begins)\n\n"
             "The class has the slots body, _index, _origin and attempt, and no __init__.");

static PyObject *
make_messages(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    /* Of a class with nothing above it: what another one needs to be made is not known here. */
    if (given != 7 || !PyType_Check(args[0]) || ((PyTypeObject *)args[0])->tp_base != &PyBaseObject_Type ||
        !PyBytes_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, make_messages_doc);
        return NULL;
    }
    PyTypeObject *cls = (PyTypeObject *)args[0];
    PyObject *origin = args[1], *bodies = args[2], *attempt = NULL, *messages = NULL;
    Py_ssize_t first = PyLong_AsSsize_t(args[4]), end = PyLong_AsSsize_t(args[5]), at = PyLong_AsSsize_t(args[6]);
    Py_ssize_t body_at, index_at, origin_at, attempt_at;
    if (PyErr_Occurred() || (body_at = place_of(args[0], "body")) < 0 || (index_at = place_of(args[0], "_index")) < 0 ||
        (origin_at = place_of(args[0], "_origin")) < 0 || (attempt_at = place_of(args[0], "attempt")) < 0) {
        return NULL;
    }
    Py_buffer view;
    if (get_column(args[3], 4, &view) < 0) {
        return NULL;
    }
    const uint32_t *length = view.buf;
    Py_ssize_t size = PyBytes_GET_SIZE(bodies);
    if (first < 0 || end < first || end > view.len / 4 || at < 0 || at > size) {
        PyErr_SetString(PyExc_ValueError, "there are no such messages");
        goto done;
    }
    attempt = PyLong_FromLong(1);
    messages = attempt == NULL ? NULL : PyList_New(end - first);
    if (messages == NULL) {
        goto done;
    }
    for (Py_ssize_t i = first; i < end; i++) {
        if (length[i] > size - at) {
            PyErr_SetString(PyExc_ValueError, "the bodies are shorter than their lengths");
            goto failed;
        }
        PyObject *message = cls->tp_alloc(cls, 0);
        if (message == NULL) {
            goto failed;
        }
        PyList_SET_ITEM(messages, i - first, message); /* a slot that is not filled yet is no harm to it */
        if ((SLOT(message, body_at) = PyBytes_FromStringAndSize(PyBytes_AS_STRING(bodies) + at, length[i])) == NULL ||
            (SLOT(message, index_at) = PyLong_FromSsize_t(i)) == NULL) {
            goto failed;
        }
        SLOT(message, origin_at) = Py_NewRef(origin);
        SLOT(message, attempt_at) = Py_NewRef(attempt);
        at += length[i];
    }
    goto done;
failed:
    Py_CLEAR(messages);
done:
    Py_XDECREF(attempt);
    PyBuffer_Release(&view);
    return messages == NULL ? NULL : Py_BuildValue("(Nn)", messages, at);
}

/* ---- messages to send, which have nothing but a body: made as quickly as a tuple */

static const char *const message_fields[] = {"topic",      "body",        "key",     "tag",        "index_keys",
                                             "properties", "delay_level", "delay_s", "deliver_at", "delay",
                                             "extras"};
#define FIELDS ((int)(sizeof(message_fields) / sizeof(*message_fields)))
static Py_ssize_t message_places[FIELDS];
static PyTypeObject *message_class; /* NULL until it is known */
static PyObject *any_message;       /* makes all others */

static PyObject *
new_message(PyObject *cls, PyObject *const *args, size_t given, PyObject *names)
{
    if (PyVectorcall_NARGS(given) != 2 || (names != NULL && PyTuple_GET_SIZE(names)) ||
        !PyUnicode_CheckExact(args[0]) || !PyBytes_CheckExact(args[1])) {
        return PyObject_Vectorcall(any_message, args, given, names);
    }
    PyObject *message = ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, 0);
    if (message == NULL) {
        return NULL;
    }
    PyObject *values[FIELDS] = {Py_NewRef(args[0]), Py_NewRef(args[1]), Py_NewRef(Py_None), Py_NewRef(Py_None),
                                PyTuple_New(0),     PyDict_New(),       PyLong_FromLong(0), Py_NewRef(Py_None),
                                Py_NewRef(Py_None), Py_NewRef(Py_None), PyLong_FromLong(0)};
    int failed = 0;
    for (int i = 0; i < FIELDS; i++) {
        failed |= (SLOT(message, message_places[i]) = values[i]) == NULL;
    }
    if (failed) {
        Py_DECREF(message);
        return NULL;
    }
    /* It refers to texts, bytes and numbers (so do properties): the garbage collector need not look at it. */
    PyObject_GC_UnTrack(message);
    return message;
}

PyDoc_STRVAR(quicken_messages_doc,
             "quicken_messages(class, function) -> None\n\n"
             "From now on calls of the class with a text and bytes are made here, all others by the function.\n"
             "This is for one class of one interpreter: another one stays as it is.");

static PyObject *
quicken_messages(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyType_Check(args[0]) || ((PyTypeObject *)args[0])->tp_base != &PyBaseObject_Type ||
        !PyType_IS_GC((PyTypeObject *)args[0]) || !PyCallable_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, quicken_messages_doc);
        return NULL;
    }
    Py_ssize_t places[FIELDS];
    for (int i = 0; i < FIELDS; i++) {
        if ((places[i] = place_of(args[0], message_fields[i])) < 0) {
            return NULL;
        }
    }
    if (message_class != NULL || PyInterpreterState_Get() != PyInterpreterState_Main()) {
        Py_RETURN_NONE; /* of what is known here there is one in the process */
    }
    memcpy(message_places, places, sizeof(places));
    any_message = Py_NewRef(args[1]);
    message_class = (PyTypeObject *)Py_NewRef(args[0]);
    message_class->tp_vectorcall = new_message;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(gather_messages_doc,
             "gather_messages(tuple of messages of one topic) -> (their bodies, all their extras) or None");

static PyObject *
gather_messages(PyObject *module, PyObject *messages)
{
    if (message_class == NULL || !PyTuple_CheckExact(messages) || PyTuple_GET_SIZE(messages) == 0) {
        Py_RETURN_NONE;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(messages);
    PyObject *topic = NULL, *bodies = PyList_New(count);
    long extras = 0;
    if (bodies == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *message = PyTuple_GET_ITEM(messages, i);
        if (i + AHEAD < count) {
            const char *later = (const char *)PyTuple_GET_ITEM(messages, i + AHEAD);
            __builtin_prefetch(later);
            __builtin_prefetch(later + 64);
        }
        if (!Py_IS_TYPE(message, message_class)) {
            goto unknown;
        }
        PyObject *its_topic = SLOT(message, message_places[0]), *body = SLOT(message, message_places[1]);
        PyObject *its_extras = SLOT(message, message_places[FIELDS - 1]);
        if (its_topic == NULL || body == NULL || its_extras == NULL || !PyLong_CheckExact(its_extras)) {
            goto unknown; /* not of our making */
        }
        topic = topic == NULL ? its_topic : topic;
        if (its_topic != topic && (!PyUnicode_CheckExact(its_topic) || !PyUnicode_CheckExact(topic) ||
                                   PyUnicode_Compare(its_topic, topic) != 0)) {
            goto unknown;
        }
        long some = PyLong_AsLong(its_extras);
        if (some < 0 || some > UINT16_MAX) {
            goto unknown;
        }
        extras |= some;
        PyList_SET_ITEM(bodies, i, Py_NewRef(body));
    }
    return Py_BuildValue("(Nl)", bodies, extras);
unknown:
    PyErr_Clear();
    Py_DECREF(bodies);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(message_column_doc, "message_column(tuple of messages, name of a field) -> list of their values or None");

static PyObject *
message_column(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (message_class == NULL || given != 2 || !PyTuple_CheckExact(args[0]) || !PyUnicode_Check(args[1])) {
        Py_RETURN_NONE;
    }
    int field = 0;
    while (field < FIELDS && PyUnicode_CompareWithASCIIString(args[1], message_fields[field]) != 0) {
        field++;
    }
    if (field == FIELDS) {
        Py_RETURN_NONE;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(args[0]);
    PyObject *column = PyList_New(count);
    for (Py_ssize_t i = 0; column != NULL && i < count; i++) {
        PyObject *message = PyTuple_GET_ITEM(args[0], i);
        if (i + AHEAD < count && Py_IS_TYPE(PyTuple_GET_ITEM(args[0], i + AHEAD), message_class)) {
            __builtin_prefetch(SLOT(PyTuple_GET_ITEM(args[0], i + AHEAD), message_places[field]));
        }
        if (!Py_IS_TYPE(message, message_class) || SLOT(message, message_places[field]) == NULL) {
            Py_DECREF(column);
            Py_RETURN_NONE;
        }
        PyList_SET_ITEM(column, i, Py_NewRef(SLOT(message, message_places[field])));
    }
    return column;
}

/* ---- a clock that is read for every message */

#ifdef CLOCK_BOOTTIME
PyDoc_STRVAR(boottime_doc, "boottime() -> seconds since the machine was started, with those in which it slept");

static PyObject *
boottime(PyObject *module, PyObject *nothing)
{
    struct timespec now;
    if (clock_gettime(CLOCK_BOOTTIME, &now) != 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyFloat_FromDouble((double)now.tv_sec + (double)now.tv_nsec / 1e9);
}
#endif

/* ---- the module */

static PyMethodDef functions[] = {
    {"join_bodies", join_bodies, METH_O, join_bodies_doc},
    {"pack_keys", pack_keys, METH_O, pack_keys_doc},
    {"hash_texts", (PyCFunction)(void (*)(void))hash_texts, METH_FASTCALL, hash_texts_doc},
    {"pack_codes", (PyCFunction)(void (*)(void))pack_codes, METH_FASTCALL, pack_codes_doc},
    {"highest", highest, METH_O, highest_doc},
    {"tally", tally, METH_O, tally_doc},
    {"make_messages", (PyCFunction)(void (*)(void))make_messages, METH_FASTCALL, make_messages_doc},
    {"quicken_messages", (PyCFunction)(void (*)(void))quicken_messages, METH_FASTCALL, quicken_messages_doc},
    {"message_column", (PyCFunction)(void (*)(void))message_column, METH_FASTCALL, message_column_doc},
    {"gather_messages", gather_messages, METH_O, gather_messages_doc},
#ifdef CLOCK_BOOTTIME
    {"boottime", boottime, METH_NOARGS, boottime_doc},
#endif
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "What is worth C; see native.py.", 0, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    make_crc_table();
    return PyModuleDef_Init(&definition);
}
