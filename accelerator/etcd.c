/* Etcd's transactions: the frequent requests as bytes, and results from the bytes of responses.

   The field numbers are from etcd's rpc.proto and kv.proto. The Python twins are in
   stores/etcd/writes/hot.py, reads/ranges.py and reads/pages.py. */

#include "accelerator.h"

/* ---- requests ---- */

static size_t varint_size(uint64_t number)
{
    size_t size = 1;
    while (number > 127) {
        number >>= 7;
        size++;
    }
    return size;
}

static char *put_varint(char *to, uint64_t number)
{
    while (number > 127) {
        *to++ = (char)(number | 128);
        number >>= 7;
    }
    *to++ = (char)number;
    return to;
}

/* The size of a field with `size` bytes of content. */
static size_t field_size(size_t size)
{
    return 1 + varint_size(size) + size;
}

static char *put_head(char *to, char tag, size_t size)
{
    *to++ = tag;
    return put_varint(to, size);
}

static char *put_bytes(char *to, const char *bytes, size_t size)
{
    memcpy(to, bytes, size);
    return to + size;
}

typedef struct {
    const char *prefix, *path;
    size_t prefix_size, path_size, size;
    const char *extra; /* what a put has behind its value */
    size_t extra_size;
} Key;

static char *put_key(char *to, char tag, const Key *key)
{
    to = put_head(to, tag, key->size);
    to = put_bytes(to, key->prefix, key->prefix_size);
    return put_bytes(to, key->path, key->path_size);
}

/* Append a put of a key, on the condition of a version, or of none if it is negative. */
static bool append_put(Buffer *buffer, const Key *key, const char *value, size_t value_size,
                       int64_t version)
{
    bool conditional = version >= 0;
    size_t put = field_size(key->size) + field_size(value_size) + (conditional ? 0 : 2);
    size_t change = field_size(put);
    if (!conditional) {
        char *to = buffer_grow(buffer, field_size(change));
        if (to == NULL) {
            return false;
        }
        to = put_head(to, 0x12, change);
        to = put_head(to, 0x12, put);
        to = put_key(to, 0x0a, key);
        to = put_head(to, 0x12, value_size);
        to = put_bytes(to, value, value_size);
        put_bytes(to, "\x20\x01", 2); /* prev_kv */
        return true;
    }
    size_t compare = field_size(key->size) + 1 + varint_size((uint64_t)version);
    size_t range = field_size(key->size) + 2;
    size_t look = field_size(range);
    size_t txn = field_size(compare) + field_size(change) + field_size(look);
    size_t operation = field_size(txn);
    char *to = buffer_grow(buffer, field_size(operation));
    if (to == NULL) {
        return false;
    }
    to = put_head(to, 0x12, operation);
    to = put_head(to, 0x22, txn);
    to = put_head(to, 0x0a, compare);
    to = put_key(to, 0x1a, key);
    *to++ = 0x20;
    to = put_varint(to, (uint64_t)version);
    to = put_head(to, 0x12, change);
    to = put_head(to, 0x12, put);
    to = put_key(to, 0x0a, key);
    to = put_head(to, 0x12, value_size);
    to = put_bytes(to, value, value_size);
    to = put_head(to, 0x1a, look);
    to = put_head(to, 0x0a, range);
    to = put_key(to, 0x0a, key);
    put_bytes(to, "\x40\x01", 2); /* keys_only */
    return true;
}

/* Append the condition of a put in a joint group. */
static bool append_compare(Buffer *buffer, const Key *key, const char *Py_UNUSED(value),
                           size_t Py_UNUSED(value_size), int64_t version)
{
    size_t compare = field_size(key->size) + 1 + varint_size((uint64_t)version);
    char *to = buffer_grow(buffer, field_size(compare));
    if (to == NULL) {
        return false;
    }
    to = put_head(to, 0x0a, compare);
    to = put_key(to, 0x1a, key);
    *to++ = 0x20;
    put_varint(to, (uint64_t)version);
    return true;
}

/* Append the condition that a key has no lease. */
static bool append_lease_compare(Buffer *buffer, const Key *key, const char *Py_UNUSED(value),
                                 size_t Py_UNUSED(value_size), int64_t Py_UNUSED(version))
{
    size_t compare = 2 + field_size(key->size) + 2;
    char *to = buffer_grow(buffer, field_size(compare));
    if (to == NULL) {
        return false;
    }
    to = put_head(to, 0x0a, compare);
    to = put_bytes(to, "\x10\x04", 2); /* target: lease */
    to = put_key(to, 0x1a, key);
    put_bytes(to, "\x40\x00", 2);
    return true;
}

/* Append the change of a put in a joint group. */
static bool append_change(Buffer *buffer, const Key *key, const char *value, size_t value_size,
                          int64_t Py_UNUSED(version))
{
    size_t put = field_size(key->size) + field_size(value_size) + key->extra_size;
    char *to = buffer_grow(buffer, field_size(field_size(put)));
    if (to == NULL) {
        return false;
    }
    to = put_head(to, 0x12, field_size(put));
    to = put_head(to, 0x12, put);
    to = put_key(to, 0x0a, key);
    to = put_head(to, 0x12, value_size);
    to = put_bytes(to, value, value_size);
    put_bytes(to, key->extra, key->extra_size);
    return true;
}

static bool append_get(Buffer *buffer, const Key *key)
{
    size_t range = field_size(key->size);
    size_t operation = field_size(range);
    char *to = buffer_grow(buffer, field_size(operation));
    if (to == NULL) {
        return false;
    }
    to = put_head(to, 0x12, operation);
    to = put_head(to, 0x0a, range);
    put_key(to, 0x0a, key);
    return true;
}

/* A function that appends a request of one kind. Returns 1 if it has, 0 if that is up to Python, -1
   with an error. */
typedef int Append(Buffer *buffer, PyObject *request, Key *key);

/* Let `key` have the path of a request; `path` keeps its bytes. */
static bool take_path(PyObject *path, Key *key)
{
    Py_ssize_t size;
    key->path = PyUnicode_AsUTF8AndSize(path, &size);
    if (key->path == NULL) {
        return false;
    }
    key->path_size = (size_t)size;
    key->size = key->prefix_size + key->path_size;
    return true;
}

/* A function that appends a put, or a part of it. */
typedef bool Form(Buffer *buffer, const Key *key, const char *value, size_t value_size,
                  int64_t version);

/* Append a put whose version is at least `least`: -1 stands for any. */
static int append_form_of(Buffer *buffer, PyObject *request, Key *key, Form *form, int64_t least)
{
    PyObject *path = request_attribute(request, name_path);
    PyObject *value = path ? request_attribute(request, name_value) : NULL;
    PyObject *expected = value ? request_attribute(request, name_expected_version) : NULL;
    int done = expected ? 0 : -1;
    int64_t version = -1;
    if (done == 0 && expected != Py_None) {
        version = PyLong_CheckExact(expected) ? PyLong_AsLongLong(expected) : -2;
        if (version == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            version = -2;
        }
        version = version < -1 || version == INT64_MAX ? -2 : version + 1;
    }
    if (done == 0 && version >= least && PyUnicode_CheckExact(path) &&
        (value == Py_None || PyBytes_CheckExact(value))) {
        if (!take_path(path, key)) {
            done = -1;
        } else {
            const char *bytes = value == Py_None ? "" : PyBytes_AsString(value);
            size_t size = value == Py_None ? 0 : (size_t)PyBytes_Size(value);
            done = form(buffer, key, bytes, size, version) ? 1 : -1;
        }
    }
    Py_XDECREF(path);
    Py_XDECREF(value);
    Py_XDECREF(expected);
    return done;
}

static int append_put_of(Buffer *buffer, PyObject *request, Key *key)
{
    return append_form_of(buffer, request, key, append_put, -1);
}

static int append_compare_of(Buffer *buffer, PyObject *request, Key *key)
{
    return append_form_of(buffer, request, key, append_compare, 0);
}

static int append_lease_compare_of(Buffer *buffer, PyObject *request, Key *key)
{
    return append_form_of(buffer, request, key, append_lease_compare, -1);
}

static int append_change_of(Buffer *buffer, PyObject *request, Key *key)
{
    return append_form_of(buffer, request, key, append_change, 0);
}

static int append_get_of(Buffer *buffer, PyObject *request, Key *key)
{
    PyObject *path = request_attribute(request, name_path);
    int done = path ? 0 : -1;
    if (path != NULL && PyUnicode_CheckExact(path)) {
        done = take_path(path, key) && append_get(buffer, key) ? 1 : -1;
    }
    Py_XDECREF(path);
    return done;
}

/* Append a request with the Python twin, which returns the bytes of a list of requests. */
static bool append_with(const char *twin, Buffer *buffer, PyObject *request, PyObject *prefix,
                        PyObject *extra)
{
    PyObject *python = bound(twin);
    PyObject *field = NULL;
    if (python != NULL) {
        field = extra == NULL ? PyObject_CallFunction(python, "[O]O", request, prefix)
                              : PyObject_CallFunction(python, "[O]OO", request, prefix, extra);
    }
    char *bytes, *to;
    Py_ssize_t size;
    bool done = field != NULL && PyBytes_AsStringAndSize(field, &bytes, &size) == 0 &&
                (to = buffer_grow(buffer, (size_t)size)) != NULL;
    if (done) {
        put_bytes(to, bytes, (size_t)size);
    }
    Py_XDECREF(field);
    return done;
}

/* Return the bytes of the requests: with `append` those of a kind, or all if it is NULL; with the twin
   the others. The format is that of the arguments: the requests, the prefix, and perhaps what puts have
   at their end. */
static PyObject *encode(const char *twin, const char *format, PyObject *arguments, PyObject *kind,
                        Append *append)
{
    PyObject *requests, *prefix, *extra = NULL;
    if (!PyArg_ParseTuple(arguments, format, &requests, &prefix, &extra)) {
        return NULL;
    }
    Py_ssize_t prefix_size;
    Key key = {.prefix = PyUnicode_AsUTF8AndSize(prefix, &prefix_size), .extra = ""};
    if (extra != NULL) {
        key.extra = PyBytes_AsString(extra);
        key.extra_size = (size_t)PyBytes_Size(extra);
    }
    PyObject *iterator = key.prefix ? PyObject_GetIter(requests) : NULL;
    if (iterator == NULL) {
        return NULL;
    }
    key.prefix_size = (size_t)prefix_size;
    Buffer buffer = {0};
    PyObject *request;
    bool done = true;
    while (done && (request = PyIter_Next(iterator)) != NULL) {
        PyObject *found = request_attribute(request, name_kind);
        int appended = found != NULL && (kind == NULL || found == kind) ? append(&buffer, request, &key) : found ? 0 : -1;
        Py_XDECREF(found);
        if (appended < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_Clear(); /* The twin raises its own error. */
            appended = 0;
        }
        if (appended == 0) {
            appended = append_with(twin, &buffer, request, prefix, extra);
        }
        done = appended > 0;
        Py_DECREF(request);
    }
    Py_DECREF(iterator);
    PyObject *result = NULL;
    if (done && !PyErr_Occurred()) {
        result = PyBytes_FromStringAndSize(buffer.data, (Py_ssize_t)buffer.size);
    }
    buffer_free(&buffer);
    return result;
}

static PyObject *etcd_writes(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    return encode("etcd_writes", "OU", arguments, name_put, append_put_of);
}

static PyObject *etcd_compares(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    return encode("etcd_compares", "OU", arguments, NULL, append_compare_of);
}

static PyObject *etcd_lease_compares(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    return encode("etcd_lease_compares", "OU", arguments, name_put, append_lease_compare_of);
}

static PyObject *etcd_changes(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    return encode("etcd_changes", "OU|S", arguments, name_put, append_change_of);
}

static PyObject *etcd_reads(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    return encode("etcd_reads", "OU", arguments, name_get, append_get_of);
}

/* ---- responses ----

   Only what etcd's own encoder writes is read here: known fields, once each and in order, with the
   shortest integers. For all else the functions return false, and Python reads the whole response,
   with protobuf. */

typedef struct {
    const unsigned char *at, *end;
} Span;

typedef struct {
    int64_t mod_revision, version, lease;
    Span key, value;
} KeyValue;

typedef struct {
    int64_t revision;
    bool succeeded;
    Span responses; /* from the tag of the first */
} Txn;

typedef enum { NOTHING = 0, RANGE = 0x0a, PUT = 0x12, DELETE = 0x1a, TXN = 0x22 } OpKind;

/* A result, with what is needed of it. */
typedef struct {
    OpKind kind;
    KeyValue kv; /* of a range: its first; of a put: the previous one, or zeros */
    size_t found; /* of a range: the number of its keys */
    int64_t count;
    Txn txn;
    Span whole;
} Op;

/* Transactions in transactions: deeper ones are not ours. */
enum { DEEPEST = 8 };

static bool read_uint(Span *span, uint64_t *number)
{
    uint64_t read = 0;
    if (span->at < span->end && *span->at < 128) { /* most of them */
        *number = *span->at++;
        return true;
    }
    for (int shift = 0; span->at < span->end; shift += 7) {
        unsigned char byte = *span->at++;
        if (shift == 63 && byte > 1) {
            return false;
        }
        read |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *number = read;
            return byte != 0 || shift == 0;
        }
    }
    return false;
}

static bool read_int(Span *span, int64_t *number)
{
    uint64_t read;
    bool done = read_uint(span, &read);
    if (done) {
        memcpy(number, &read, sizeof read);
    }
    return done;
}

static bool read_bool(Span *span, bool *yes)
{
    uint64_t read;
    bool done = read_uint(span, &read) && read < 2;
    *yes = done && read == 1;
    return done;
}

static bool read_span(Span *span, Span *part)
{
    uint64_t size;
    if (!read_uint(span, &size) || size > (uint64_t)(span->end - span->at)) {
        return false;
    }
    part->at = span->at;
    part->end = span->at += size;
    return true;
}

/* Read the tag of the next field, which must not precede the `last` one. */
static bool read_tag(Span *span, unsigned char *last, bool repeated)
{
    unsigned char tag = *span->at++;
    bool in_order = tag > *last || (tag == *last && repeated);
    *last = tag;
    return in_order;
}

static bool read_header(Span header, int64_t *revision)
{
    unsigned char tag = 0;
    uint64_t ignored;
    while (header.at < header.end) {
        if (!read_tag(&header, &tag, false)) {
            return false;
        }
        switch (tag) {
        case 0x08: /* cluster_id */
        case 0x10: /* member_id */
        case 0x20: /* raft_term */
            if (!read_uint(&header, &ignored)) {
                return false;
            }
            break;
        case 0x18:
            if (!read_int(&header, revision)) {
                return false;
            }
            break;
        default:
            return false;
        }
    }
    return true;
}

static bool read_kv(Span span, KeyValue *kv)
{
    unsigned char tag = 0;
    uint64_t ignored;
    memset(kv, 0, sizeof *kv);
    while (span.at < span.end) {
        bool done = read_tag(&span, &tag, false);
        switch (tag) {
        case 0x0a:
            done = done && read_span(&span, &kv->key);
            break;
        case 0x10: /* create_revision */
            done = done && read_uint(&span, &ignored);
            break;
        case 0x18:
            done = done && read_int(&span, &kv->mod_revision);
            break;
        case 0x20:
            done = done && read_int(&span, &kv->version);
            break;
        case 0x2a:
            done = done && read_span(&span, &kv->value);
            break;
        case 0x30:
            done = done && read_int(&span, &kv->lease);
            break;
        default:
            return false;
        }
        if (!done) {
            return false;
        }
    }
    return true;
}

/* Read the response to a range, a put or a delete. */
static bool read_simple(Span span, Op *op)
{
    unsigned char tag = 0;
    uint64_t ignored;
    bool more;
    int64_t revision;
    KeyValue kv;
    Span part;
    while (span.at < span.end) {
        unsigned char last = tag;
        bool done = read_tag(&span, &tag, op->kind != PUT && (last == 0x12 || last == 0x1a));
        if (!done) {
            return false;
        }
        if (tag == 0x0a) {
            done = read_span(&span, &part) && read_header(part, &revision);
        } else if ((tag == 0x12 && op->kind != DELETE) || (tag == 0x1a && op->kind == DELETE)) {
            done = read_span(&span, &part) && read_kv(part, &kv);
            if (done && op->found++ == 0) {
                op->kv = kv;
            }
        } else if (tag == 0x10 && op->kind == DELETE) {
            done = read_uint(&span, &ignored);
        } else if (tag == 0x18 && op->kind == RANGE) {
            done = read_bool(&span, &more);
        } else if (tag == 0x20 && op->kind == RANGE) {
            done = read_int(&span, &op->count);
        } else {
            return false;
        }
        if (!done) {
            return false;
        }
    }
    return true;
}

static bool read_op(Span span, Op *op, int depth);

/* Read the next result of a transaction. */
static bool next_op(Span *responses, Op *op, int depth)
{
    Span part;
    return responses->at < responses->end && *responses->at++ == 0x1a &&
           read_span(responses, &part) && read_op(part, op, depth);
}

/* Read a transaction up to its results. */
static bool read_txn(Span span, Txn *txn)
{
    unsigned char tag = 0;
    Span part;
    memset(txn, 0, sizeof *txn);
    while (span.at < span.end && *span.at != 0x1a) {
        if (!read_tag(&span, &tag, false)) {
            return false;
        }
        bool done = tag == 0x0a   ? read_span(&span, &part) && read_header(part, &txn->revision)
                    : tag == 0x10 ? read_bool(&span, &txn->succeeded)
                                  : false;
        if (!done) {
            return false;
        }
    }
    txn->responses = span;
    return true;
}

/* Read a result, and the results in it to their end. */
static bool read_op(Span span, Op *op, int depth)
{
    Span part;
    Op ignored;
    memset(op, 0, sizeof *op);
    op->whole = span;
    if (span.at == span.end) {
        return true;
    }
    op->kind = (OpKind)*span.at++;
    if (!read_span(&span, &part) || span.at != span.end) {
        return false;
    }
    switch (op->kind) {
    case RANGE:
    case PUT:
    case DELETE:
        return read_simple(part, op);
    case TXN:
        if (depth == DEEPEST || !read_txn(part, &op->txn)) {
            return false;
        }
        for (part = op->txn.responses; part.at < part.end;) {
            if (!next_op(&part, &ignored, depth + 1)) {
                return false;
            }
        }
        return true;
    default:
        return false;
    }
}

static PyObject *bytes_of(Span span)
{
    return PyBytes_FromStringAndSize((const char *)span.at, span.end - span.at);
}

/* Return a Stat of a request's path. Steals `ephemeral` and `owned`, which may be NULL. */
static PyObject *stat_of(Maker *stat, PyObject *request, int64_t version, PyObject *revision,
                         PyObject *ephemeral, PyObject *owned)
{
    bool fine = maker_set(stat, 5, ephemeral);
    fine = maker_set(stat, 6, owned) && fine;
    fine = fine && maker_set(stat, 1, PyLong_FromLongLong(version)) &&
           maker_set(stat, 2, Py_NewRef(revision));
    return fine ? make_stat(stat, request_attribute(request, name_path)) : NULL;
}

/* Return the answer to a write; Python makes those that are not frequent. */
static PyObject *answer_of_write(Maker *stat, PyObject *request, const Op *op, PyObject *revision)
{
    PyObject *kind = request_attribute(request, name_kind);
    if (kind == NULL) {
        return NULL;
    }
    bool is_put = kind == name_put, is_delete = kind == name_delete;
    Py_DECREF(kind);
    if (is_delete && op->kind == TXN && op->txn.succeeded) {
        return Py_NewRef(Py_None);
    }
    if (is_put) {
        PyObject *expected = request_attribute(request, name_expected_version);
        if (expected == NULL) {
            return NULL;
        }
        int64_t version = -1;
        if (expected == Py_None) {
            /* Etcd counts from 1, so its previous version is our new one. */
            version = op->kind == PUT && op->kv.lease == 0 ? op->kv.version : -1;
        } else if (PyLong_CheckExact(expected) &&
                   (op->kind == PUT || (op->kind == TXN && op->txn.succeeded))) {
            version = PyLong_AsLongLong(expected);
            if (version == -1 && PyErr_Occurred()) {
                PyErr_Clear();
                version = INT64_MAX;
            }
            version = version < INT64_MAX ? version + 1 : -1;
        }
        Py_DECREF(expected);
        if (version >= 0) {
            return stat_of(stat, request, version, revision, Py_NewRef(Py_False),
                           Py_NewRef(Py_False));
        }
    }
    PyObject *python = bound("etcd_write_answer");
    PyObject *part = python ? bytes_of(op->whole) : NULL;
    return part ? PyObject_CallFunction(python, "ONO", request, part, revision) : NULL;
}

/* Return the answers to the writes of a group, or NULL: with an error, or if they do not fit. */
static PyObject *answers_of_group(Maker *stat, PyObject *requests, const Txn *txn,
                                  PyObject *revision)
{
    PyObject *answers = PyList_New(0);
    PyObject *iterator = answers ? PyObject_GetIter(requests) : NULL;
    Span left = txn->responses;
    PyObject *request = NULL;
    bool done = iterator != NULL;
    while (done && (request = PyIter_Next(iterator)) != NULL) {
        Op op;
        done = next_op(&left, &op, 0);
        PyObject *answer = done ? answer_of_write(stat, request, &op, revision) : NULL;
        done = answer != NULL && PyList_Append(answers, answer) == 0;
        Py_XDECREF(answer);
        Py_DECREF(request);
    }
    Py_XDECREF(iterator);
    if (!done || PyErr_Occurred() || left.at < left.end) {
        Py_CLEAR(answers);
    }
    return answers;
}

/* Return the results of a response: for each group of requests its answers, for None the message.
   NULL with or without an error if Python has to read the response. */
static PyObject *read_response(Span answer, PyObject *groups)
{
    Txn txn;
    if (!PyList_Check(groups) || !read_txn(answer, &txn) || !txn.succeeded ||
        txn.revision <= 0) {
        return NULL;
    }
    Maker stat;
    bool done = maker_open(&stat, bound("Stat"), 7);
    PyObject *revision = done ? PyLong_FromLongLong(txn.revision) : NULL;
    PyObject *parse = revision ? bound("etcd_result") : NULL;
    PyObject *results = parse ? PyList_New(0) : NULL;
    done = results != NULL;
    Span left = txn.responses;
    for (Py_ssize_t place = 0; done && left.at < left.end; place++) {
        Op op;
        PyObject *requests = PyList_GetItem(groups, place); /* borrowed, or an error at its end */
        PyObject *result = NULL;
        Py_XINCREF(requests);
        if (requests != NULL && next_op(&left, &op, 0)) {
            if (requests == Py_None || op.kind != TXN || !op.txn.succeeded) {
                PyObject *whole = bytes_of(op.whole);
                result = whole ? PyObject_CallFunction(parse, "N", whole) : NULL;
            } else {
                result = answers_of_group(&stat, requests, &op.txn, revision);
            }
        }
        Py_XDECREF(requests);
        done = result != NULL && PyList_Append(results, result) == 0;
        Py_XDECREF(result);
    }
    maker_close(&stat);
    if (done && PyList_Size(results) == PyList_Size(groups)) {
        return Py_BuildValue("(NN)", revision, results);
    }
    Py_XDECREF(revision);
    Py_XDECREF(results);
    return NULL;
}

static PyObject *etcd_response(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *answer, *groups;
    if (!PyArg_ParseTuple(arguments, "SO", &answer, &groups)) {
        return NULL;
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AsString(answer);
    Span span = {start, start + PyBytes_Size(answer)};
    PyObject *read = read_response(span, groups);
    PyObject *type = read ? bound("etcd_Response") : NULL;
    if (type == NULL) {
        Py_XDECREF(read);
        return defer("etcd_response", arguments);
    }
    PyObject *response = PyObject_CallObject(type, read);
    Py_DECREF(read);
    return response;
}

/* Return the answer to a get. */
static PyObject *answer_of_get(Maker *got, Maker *stat, PyObject *request, const Op *op,
                               PyObject *owns)
{
    if (op->found == 0) {
        return Py_NewRef(Py_None);
    }
    const KeyValue *kv = &op->kv;
    PyObject *revision = PyLong_FromLongLong(kv->mod_revision);
    if (revision == NULL) {
        return NULL;
    }
    PyObject *owned = kv->lease ? PyObject_CallFunction(owns, "L", (long long)kv->lease)
                                : Py_NewRef(Py_False);
    PyObject *made = stat_of(stat, request, kv->version - 1, revision,
                             Py_NewRef(kv->lease ? Py_True : Py_False), owned);
    Py_DECREF(revision);
    bool plain = made != NULL && !PyObject_GC_IsTracked(made);
    bool fine = maker_set(got, 1, made) && maker_set(got, 0, bytes_of(kv->value));
    made = fine ? maker_make(got) : NULL;
    return plain ? untrack(made) : made;
}

/* Return the answers to reads and the first pages of others, or NULL as `read_response`. */
static PyObject *read_reads(PyObject *requests, Span answer, PyObject *owns)
{
    Txn txn;
    if (!read_txn(answer, &txn) || txn.revision <= 0) {
        return NULL;
    }
    Maker got, stat;
    memset(&got, 0, sizeof got);
    bool done = maker_open(&stat, bound("Stat"), 7) && maker_open(&got, bound("GetResult"), 2);
    PyObject *python = done ? bound("etcd_read_answer") : NULL;
    PyObject *answers = python ? PyList_New(0) : NULL;
    PyObject *pages = answers ? PyList_New(0) : NULL;
    PyObject *iterator = pages ? PyObject_GetIter(requests) : NULL;
    PyObject *request;
    Span left = txn.responses;
    done = iterator != NULL;
    while (done && (request = PyIter_Next(iterator)) != NULL) {
        Op op;
        PyObject *kind = request_attribute(request, name_kind);
        PyObject *found = NULL;
        if (kind != NULL && next_op(&left, &op, 0)) {
            if (kind == name_get && op.kind == RANGE && op.kv.version > INT64_MIN) {
                found = answer_of_get(&got, &stat, request, &op, owns);
            } else {
                PyObject *place = PyLong_FromSsize_t(PyList_Size(answers));
                PyObject *whole = place ? bytes_of(op.whole) : NULL;
                found = whole ? PyObject_CallFunction(python, "ONOOO", request, whole, owns, place,
                                                      pages)
                              : NULL;
                Py_XDECREF(place);
            }
        }
        done = found != NULL && PyList_Append(answers, found) == 0;
        Py_XDECREF(found);
        Py_XDECREF(kind);
        Py_DECREF(request);
    }
    Py_XDECREF(iterator);
    maker_close(&stat);
    maker_close(&got);
    if (done && !PyErr_Occurred() && left.at == left.end) {
        return Py_BuildValue("(NN)", answers, pages);
    }
    Py_XDECREF(answers);
    Py_XDECREF(pages);
    return NULL;
}

static PyObject *etcd_read_answers(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *requests, *answer, *owns;
    if (!PyArg_ParseTuple(arguments, "OSO", &requests, &answer, &owns)) {
        return NULL;
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AsString(answer);
    Span span = {start, start + PyBytes_Size(answer)};
    PyObject *read = read_reads(requests, span, owns);
    return read ? read : defer("etcd_read_answers", arguments);
}

/* ---- pages of scans ---- */

enum { KEYS, VALUES, VERSIONS, REVISIONS, LEASES, COLUMNS };

/* Append to a column. Steals the entry, which may be NULL with an error set. */
static bool add(PyObject *column, PyObject *entry)
{
    bool done = entry != NULL && PyList_Append(column, entry) == 0;
    Py_XDECREF(entry);
    return done;
}

/* Read the response to a range, and append its entries to the columns. */
static bool read_page(Span span, PyObject **columns, int64_t *revision, int64_t *count)
{
    unsigned char tag = 0;
    bool more, done = true;
    KeyValue kv;
    Span part;
    while (done && span.at < span.end) {
        done = read_tag(&span, &tag, tag == 0x12);
        switch (done ? tag : 0) {
        case 0x0a:
            done = read_span(&span, &part) && read_header(part, revision);
            break;
        case 0x12:
            /* Etcd counts versions from 1. */
            done = read_span(&span, &part) && read_kv(part, &kv) && kv.version > INT64_MIN &&
                   add(columns[KEYS], bytes_of(kv.key)) &&
                   add(columns[VALUES], bytes_of(kv.value)) &&
                   add(columns[VERSIONS], PyLong_FromLongLong(kv.version - 1)) &&
                   add(columns[REVISIONS], PyLong_FromLongLong(kv.mod_revision)) &&
                   add(columns[LEASES], PyLong_FromLongLong(kv.lease));
            break;
        case 0x18:
            done = read_bool(&span, &more);
            break;
        case 0x20:
            done = read_int(&span, count);
            break;
        default:
            done = false;
        }
    }
    return done;
}

static PyObject *etcd_page(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *answer;
    int chunk;
    if (!PyArg_ParseTuple(arguments, "Sp", &answer, &chunk)) {
        return NULL;
    }
    const unsigned char *start = (const unsigned char *)PyBytes_AsString(answer);
    Span whole = {start, start + PyBytes_Size(answer)}, span = whole;
    int64_t revision = 0, count = 0;
    PyObject *columns[COLUMNS] = {NULL};
    bool done = !chunk || (whole.at < whole.end && *whole.at++ == 0x0a &&
                           read_span(&whole, &span) && whole.at == whole.end);
    for (int i = 0; done && i < COLUMNS; i++) {
        done = (columns[i] = PyList_New(0)) != NULL;
    }
    PyObject *type = done && read_page(span, columns, &revision, &count) ? bound("etcd_Page") : NULL;
    PyObject *page = NULL;
    if (type != NULL) {
        page = PyObject_CallFunction(type, "LLOOOOOn", (long long)revision, (long long)count,
                                     columns[KEYS], columns[VALUES], columns[VERSIONS],
                                     columns[REVISIONS], columns[LEASES], PyBytes_Size(answer));
    }
    for (int i = 0; i < COLUMNS; i++) {
        Py_XDECREF(columns[i]);
    }
    return page ? page : defer("etcd_page", arguments);
}

PyMethodDef etcd_methods[] = {
    {"etcd_writes", etcd_writes, METH_VARARGS, NULL},
    {"etcd_compares", etcd_compares, METH_VARARGS, NULL},
    {"etcd_lease_compares", etcd_lease_compares, METH_VARARGS, NULL},
    {"etcd_changes", etcd_changes, METH_VARARGS, NULL},
    {"etcd_reads", etcd_reads, METH_VARARGS, NULL},
    {"etcd_response", etcd_response, METH_VARARGS, NULL},
    {"etcd_read_answers", etcd_read_answers, METH_VARARGS, NULL},
    {"etcd_page", etcd_page, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
