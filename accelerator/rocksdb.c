/* Twins of functions in stores/rocksdb: records become answers, and plain puts become records. */

#include "accelerator.h"

/* As in value_format.py: form, version, revision, created, modified. */
enum { HEADER_SIZE = 29, PLAIN = 1 };

typedef struct {
    Maker got, stat;
} Answers;

static bool answers_open(Answers *answers)
{
    memset(answers, 0, sizeof *answers);
    return maker_open(&answers->got, bound("GetResult"), 2) &&
           maker_open(&answers->stat, bound("Stat"), 7) &&
           maker_set(&answers->stat, 5, Py_NewRef(Py_False)) &&
           maker_set(&answers->stat, 6, Py_NewRef(Py_False));
}

static void answers_close(Answers *answers)
{
    maker_close(&answers->got);
    maker_close(&answers->stat);
}

/* Return the bytes of a record that is a plain value's, or NULL. */
static const unsigned char *plain_record(PyObject *record, Py_ssize_t *size)
{
    if (!PyBytes_CheckExact(record)) {
        return NULL;
    }
    const unsigned char *at = (const unsigned char *)PyBytes_AsString(record);
    *size = PyBytes_Size(record);
    bool plain = *size >= HEADER_SIZE && at[0] == PLAIN && at[1] < 0x80 && at[5] < 0x80 &&
                 at[13] < 0x80 && at[21] < 0x80;
    return plain ? at : NULL;
}

/* value_format.answer_reads */

/* Return the result of a get of a plain record, or NULL. */
static PyObject *found_plain(Answers *answers, PyObject *request, const unsigned char *record,
                             Py_ssize_t size)
{
    Maker *stat = &answers->stat, *got = &answers->got;
    bool fine = maker_set(stat, 1, int32_at(record + 1)) && maker_set(stat, 2, int64_at(record + 5)) &&
                maker_set(stat, 3, int64_at(record + 13)) && maker_set(stat, 4, int64_at(record + 21));
    PyObject *made = fine ? make_stat(stat, request_attribute(request, name_path)) : NULL;
    bool plain = made != NULL && !PyObject_GC_IsTracked(made);
    const char *value = (const char *)record + HEADER_SIZE;
    fine = maker_set(got, 1, made) &&
           maker_set(got, 0, PyBytes_FromStringAndSize(value, size - HEADER_SIZE));
    made = fine ? maker_make(got) : NULL;
    return plain ? untrack(made) : made;
}

/* Answer a read; STOP if it asks for more than a record. */
static Outcome answer_read(Answers *answers, PyObject *request, PyObject *record, PyObject *owns,
                           PyObject **answer)
{
    PyObject *kind = request_attribute(request, name_kind);
    if (kind == NULL) {
        return FAILED;
    }
    int is_get = kind == name_get ? 1 : PyObject_RichCompareBool(kind, name_get, Py_EQ);
    int is_exists = is_get == 0 ? PyObject_RichCompareBool(kind, name_exists, Py_EQ) : 0;
    Py_DECREF(kind);
    if (is_get < 0 || is_exists < 0) {
        return FAILED;
    }
    if (!is_get && !is_exists) {
        return STOP;
    }
    Py_ssize_t size;
    const unsigned char *plain;
    if (is_exists) {
        *answer = Py_NewRef(record == Py_None ? Py_False : Py_True);
    } else if (record == Py_None) {
        *answer = Py_NewRef(Py_None);
    } else if ((plain = plain_record(record, &size)) != NULL) {
        *answer = found_plain(answers, request, plain, size);
    } else {
        PyObject *found_at = bound("found_at");
        PyObject *path = found_at == NULL ? NULL : request_attribute(request, name_path);
        *answer = path == NULL ? NULL
                               : PyObject_CallFunctionObjArgs(found_at, path, record, owns, NULL);
        Py_XDECREF(path);
    }
    return *answer == NULL ? FAILED : DONE;
}

static PyObject *answer_reads(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *requests, *records, *owns, *request, *record;
    if (!PyArg_ParseTuple(arguments, "OOO:answer_reads", &requests, &records, &owns)) {
        return NULL;
    }
    if (!PyIter_Check(records)) {
        return defer("answer_reads", arguments);
    }
    Answers answers;
    bool fine = answers_open(&answers);
    PyObject *found = fine ? PyList_New(0) : NULL;
    PyObject *of_requests = found == NULL ? NULL : PyObject_GetIter(requests);
    fine = of_requests != NULL;
    while (fine && (request = PyIter_Next(of_requests)) != NULL) {
        PyObject *answer = NULL;
        record = PyIter_Next(records);
        if (record == NULL && !PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "fewer records than requests");
        }
        Outcome outcome =
            record == NULL ? FAILED : answer_read(&answers, request, record, owns, &answer);
        Py_DECREF(request);
        Py_XDECREF(record);
        fine = outcome != FAILED && (answer == NULL || PyList_Append(found, answer) == 0);
        Py_XDECREF(answer);
        if (outcome == STOP) {
            break;
        }
    }
    answers_close(&answers);
    Py_XDECREF(of_requests);
    if (!fine || PyErr_Occurred()) {
        Py_CLEAR(found);
    }
    return found;
}

/* value_format.plain_puts */

typedef struct {
    PyObject *revision, *now;
    int64_t revision_number, now_number;
    PyObject *stats, *records;
    Maker stat;
} Putting;

static void put64(char *at, int64_t number)
{
    put32(at, (uint32_t)((uint64_t)number >> 32));
    put32(at + 4, (uint32_t)number);
}

/* Add the answer and the record of a put; `before` is the header that it replaces, if any. */
static bool add_put_of(Putting *putting, PyObject *path, PyObject *value, int32_t version,
                       const unsigned char *before)
{
    Py_ssize_t value_bytes = value == Py_None ? 0 : PyBytes_Size(value);
    int64_t created = before == NULL ? putting->now_number : get64(before + 13);
    PyObject *record = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + value_bytes);
    if (record == NULL) {
        return false;
    }
    char *at = PyBytes_AsString(record);
    at[0] = PLAIN;
    put32(at + 1, (uint32_t)version);
    put64(at + 5, putting->revision_number);
    put64(at + 13, created);
    put64(at + 21, putting->now_number);
    if (value_bytes > 0) {
        memcpy(at + HEADER_SIZE, PyBytes_AsString(value), (size_t)value_bytes);
    }
    Maker *stat = &putting->stat;
    bool fine =
        maker_set(stat, 1, PyLong_FromLong(version)) &&
        maker_set(stat, 3, before == NULL ? Py_NewRef(putting->now) : PyLong_FromLongLong(created));
    PyObject *answer = fine ? make_stat(stat, Py_NewRef(path)) : NULL;
    fine = answer != NULL && PyList_Append(putting->stats, answer) == 0 &&
           PyList_Append(putting->records, record) == 0;
    Py_XDECREF(answer);
    Py_DECREF(record);
    return fine;
}

/* Add a put; STOP if Python has to decide it. */
static Outcome add_plain_put(Putting *putting, PyObject *request, PyObject *header)
{
    PyObject *kind = request_attribute(request, name_kind);
    PyObject *expected = request_attribute(request, name_expected_version);
    PyObject *path = request_attribute(request, name_path);
    PyObject *value = request_attribute(request, name_value);
    Outcome outcome = DEFER;
    const unsigned char *before = NULL;
    Py_ssize_t size;
    if (kind == NULL || expected == NULL || path == NULL || value == NULL) {
        goto end;
    }
    int is_put = kind == name_put ? 1 : PyObject_RichCompareBool(kind, name_put, Py_EQ);
    if (is_put <= 0) {
        outcome = is_put == 0 ? STOP : DEFER;
        goto end;
    }
    if ((value != Py_None && !PyBytes_CheckExact(value)) ||
        (header != Py_None && !PyBytes_CheckExact(header))) {
        goto end;
    }
    if (header != Py_None && (before = plain_record(header, &size)) == NULL) {
        outcome = STOP;
        goto end;
    }
    int32_t version = before == NULL ? -1 : get32(before + 1);
    if (expected != Py_None) {
        long long number = PyLong_CheckExact(expected) ? PyLong_AsLongLong(expected) : version;
        if (!PyLong_CheckExact(expected) || PyErr_Occurred()) {
            goto end;
        }
        if (number != version) {
            outcome = STOP;
            goto end;
        }
    }
    if (version < INT32_MAX) {
        outcome = add_put_of(putting, path, value, version + 1, before) ? DONE : FAILED;
    }
end:
    Py_XDECREF(kind);
    Py_XDECREF(expected);
    Py_XDECREF(path);
    Py_XDECREF(value);
    return outcome;
}

static bool putting_open(Putting *putting)
{
    putting->revision_number = PyLong_AsLongLong(putting->revision);
    putting->now_number = PyErr_Occurred() ? -1 : PyLong_AsLongLong(putting->now);
    return putting->revision_number >= 0 && putting->now_number >= 0 &&
           maker_open(&putting->stat, bound("Stat"), 7) &&
           maker_set(&putting->stat, 2, Py_NewRef(putting->revision)) &&
           maker_set(&putting->stat, 4, Py_NewRef(putting->now)) &&
           maker_set(&putting->stat, 5, Py_NewRef(Py_False)) &&
           maker_set(&putting->stat, 6, Py_NewRef(Py_False)) &&
           (putting->stats = PyList_New(0)) != NULL && (putting->records = PyList_New(0)) != NULL;
}

static PyObject *plain_puts(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *requests, *headers;
    Py_ssize_t start;
    Putting putting;
    memset(&putting, 0, sizeof putting);
    if (!PyArg_ParseTuple(arguments, "OOnO!O!:plain_puts", &requests, &headers, &start,
                          &PyLong_Type, &putting.revision, &PyLong_Type, &putting.now)) {
        return defer("plain_puts", arguments);
    }
    Outcome outcome = start >= 0 && putting_open(&putting) ? DONE : DEFER;
    Py_ssize_t count = outcome == DONE ? length_of(requests) : 0;
    outcome = count < 0 ? DEFER : outcome;
    for (Py_ssize_t place = start; outcome == DONE && place < count; place++) {
        PyObject *request = item(requests, place), *header = item(headers, place);
        outcome = request == NULL || header == NULL ? DEFER
                                                    : add_plain_put(&putting, request, header);
        Py_XDECREF(request);
        Py_XDECREF(header);
    }
    PyObject *made = NULL;
    if (outcome == DONE || outcome == STOP) {
        made = PyTuple_Pack(2, putting.stats, putting.records);
    }
    maker_close(&putting.stat);
    Py_XDECREF(putting.stats);
    Py_XDECREF(putting.records);
    return outcome == DEFER ? defer("plain_puts", arguments) : made;
}

PyMethodDef rocksdb_methods[] = {
    {"answer_reads", answer_reads, METH_VARARGS, NULL},
    {"plain_puts", plain_puts, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
