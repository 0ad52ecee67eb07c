/* Puts in a multi: a twin of plan.py. */

#include "zookeeper.h"

typedef struct {
    Generations known;
    PyObject *requests, *paths, *seen;       /* of the batch */
    PyObject *deleted, *fleeting, *made;     /* of the changes */
    PyObject *ops;                           /* of the group */
    PyObject *created;                       /* the first path that the group creates, or None */
    PyObject *last;                          /* a path whose parent is fine, or NULL */
    const char *acl;
    Py_ssize_t acl_bytes, size, operations, room, limit, last_parent_bytes;
    bool ephemeral;                          /* an ephemeral node was added */
    Buffer body;
} Adding;

/* How to send a put. */
typedef struct {
    int opcode;
    int32_t version;
} Form;

/* The attributes of a put. */
typedef struct {
    PyObject *request, *kind, *path, *expected, *value, *options;
} Put;

static bool put_read(Put *put, const Adding *adding, long long place)
{
    memset(put, 0, sizeof *put);
    return place >= 0 && (put->request = item(adding->requests, (Py_ssize_t)place)) != NULL &&
           (put->kind = request_attribute(put->request, name_kind)) != NULL &&
           (put->path = item(adding->paths, (Py_ssize_t)place)) != NULL &&
           (put->expected = request_attribute(put->request, name_expected_version)) != NULL &&
           (put->value = request_attribute(put->request, name_value)) != NULL &&
           (put->options = request_attribute(put->request, name_options)) != NULL;
}

static void put_free(Put *put)
{
    Py_XDECREF(put->request);
    Py_XDECREF(put->kind);
    Py_XDECREF(put->path);
    Py_XDECREF(put->expected);
    Py_XDECREF(put->value);
    Py_XDECREF(put->options);
}

static Outcome choose_ephemeral(const Adding *adding, const Put *put, bool looked,
                                long long expected)
{
    PyObject *only_ephemeral = bound("only_ephemeral"), *size;
    int ephemeral =
        only_ephemeral == NULL ? -1 : PyObject_RichCompareBool(put->options, only_ephemeral, Py_EQ);
    if (ephemeral < 0) {
        return DEFER;
    }
    if (!ephemeral || looked) {
        return STOP;
    }
    if (put->expected != Py_None) {
        return expected == ABSENT ? DONE : STOP;
    }
    return !find_size(&adding->known, put->path, &size) ? FAILED : size == NULL ? DONE : STOP;
}

/* Choose the form of a put. */
static Outcome choose_form(const Adding *adding, const Put *put, PyObject *place, Form *form)
{
    PyObject *node = PyDict_GetItemWithError(adding->seen, place), *size;
    long long expected = 0;
    if (node == NULL && PyErr_Occurred()) {
        return FAILED;
    }
    if (put->expected != Py_None) {
        expected = PyLong_Check(put->expected) ? PyLong_AsLongLong(put->expected) : INT64_MAX;
        if ((int32_t)expected != expected || PyErr_Occurred()) {
            return DEFER;
        }
    }
    if (put->options != Py_None) {
        form->opcode = EPHEMERAL;
        return choose_ephemeral(adding, put, node != NULL, expected);
    }
    form->opcode = SET_DATA;
    form->version = (int32_t)expected;
    if (put->expected == Py_None) {
        form->version = ANY_VERSION;
        if (node == NULL) {
            if (!find_size(&adding->known, put->path, &size)) {
                return FAILED;
            }
            node = size == NULL ? Py_None : size;
        }
        if (node == Py_None) {
            form->opcode = CREATE;
        }
    } else if (expected == ABSENT) {
        if (node == NULL || node == Py_None) {
            form->opcode = CREATE;
        } else {
            long long version;
            if (!number_at(node, 6, &version) || (int32_t)version != version) {
                return DEFER;
            }
            form->version = (int32_t)version;
        }
    }
    return DONE;
}

/* Say whether the last change of the group is the creation of a value at a path or above it. */
static Outcome follows_value(const Adding *adding, const char *parent, Py_ssize_t parent_bytes)
{
    for (Py_ssize_t k = PyList_Size(adding->ops) - 1; k >= 0; k--) {
        long long opcode, place;
        if (!read_op(PyList_GetItem(adding->ops, k), &opcode, &place)) {
            return DEFER;
        }
        if (opcode == CHECK) {
            continue;
        }
        if (opcode != CREATE) {
            return DONE;
        }
        PyObject *path = item(adding->paths, (Py_ssize_t)place);
        Py_ssize_t bytes = 0;
        const char *text = path == NULL ? NULL : PyUnicode_AsUTF8AndSize(path, &bytes);
        bool above = text != NULL && bytes <= parent_bytes &&
                     memcmp(text, parent, (size_t)bytes) == 0 &&
                     (bytes == parent_bytes || parent[bytes] == '/');
        Py_XDECREF(path);
        return text == NULL ? DEFER : above ? STOP : DONE;
    }
    return DONE;
}

/* plan._has_parent */
static Outcome has_parent(const Adding *adding, const char *text, Py_ssize_t bytes)
{
    PyObject *parent = PyUnicode_DecodeUTF8(text, bytes, NULL), *size;
    if (parent == NULL) {
        return FAILED;
    }
    Outcome outcome = DONE;
    int barred = PySet_Contains(adding->deleted, parent);
    barred = barred ? barred : PySet_Contains(adding->fleeting, parent);
    int made = PySet_Contains(adding->made, parent);
    if (barred < 0 || made < 0) {
        outcome = FAILED;
    } else if (barred) {
        outcome = STOP;
    } else if (bytes > 0 && !made) {
        outcome = !find_size(&adding->known, parent, &size) ? FAILED : size == NULL ? STOP : DONE;
    }
    Py_DECREF(parent);
    return outcome == DONE ? follows_value(adding, text, bytes) : outcome;
}

/* Write an op, and note it. */
static bool write_op(Adding *adding, PyObject *place, PyObject *path, Form form, const char *text,
                       Py_ssize_t path_bytes, const char *value, Py_ssize_t value_bytes)
{
    Py_ssize_t tail_bytes = form.opcode == SET_DATA ? 4 : adding->acl_bytes;
    size_t size = (size_t)(CREATE_OVERHEAD + path_bytes + value_bytes + tail_bytes);
    char *at = buffer_grow(&adding->body, size);
    if (at == NULL) {
        return false;
    }
    at = put_header(at, form.opcode == EPHEMERAL ? CREATE : form.opcode, path_bytes);
    memcpy(at, text, (size_t)path_bytes);
    at += path_bytes;
    put32(at, (uint32_t)value_bytes);
    memcpy(at + 4, value, (size_t)value_bytes);
    at += 4 + value_bytes;
    if (form.opcode == SET_DATA) {
        put32(at, (uint32_t)form.version);
    } else {
        memcpy(at, adding->acl, (size_t)adding->acl_bytes);
        if (form.opcode == EPHEMERAL) {
            put32(at + adding->acl_bytes - 4, 1);
        }
    }
    PyObject *opcode = PyLong_FromLong(form.opcode), *bytes = PyLong_FromSsize_t(path_bytes);
    PyObject *noted =
        opcode == NULL || bytes == NULL ? NULL : untrack(PyTuple_Pack(3, opcode, place, bytes));
    bool fine = noted != NULL && PyList_Append(adding->ops, noted) == 0 &&
                PySet_Add(adding->made, path) == 0;
    Py_XDECREF(noted);
    Py_XDECREF(opcode);
    Py_XDECREF(bytes);
    if (form.opcode == EPHEMERAL) {
        adding->ephemeral = true;
        fine = fine && PySet_Add(adding->fleeting, path) == 0;
    }
    if (form.opcode != SET_DATA && adding->created == Py_None) {
        Py_DECREF(adding->created);
        adding->created = Py_NewRef(path);
    }
    adding->size += (Py_ssize_t)size;
    adding->operations++;
    return fine;
}

static Outcome add_put(Adding *adding, PyObject *place)
{
    Put put;
    Form form;
    Outcome outcome = DEFER;
    const char *text;
    char *value;
    Py_ssize_t path_bytes, value_bytes;
    long long i = PyLong_Check(place) ? PyLong_AsLongLong(place) : -1;
    if (!put_read(&put, adding, i)) {
        goto end;
    }
    int is_put = is_kind(put.kind, name_put);
    if (is_put == 0 || put.value == Py_None) {
        outcome = STOP;
        goto end;
    }
    if (is_put < 0 || !PyBytes_Check(put.value) ||
        PyBytes_AsStringAndSize(put.value, &value, &value_bytes) < 0 ||
        !PyUnicode_Check(put.path) ||
        (text = PyUnicode_AsUTF8AndSize(put.path, &path_bytes)) == NULL ||
        path_bytes > INT32_MAX || value_bytes > INT32_MAX) {
        goto end;
    }
    outcome = choose_form(adding, &put, place, &form);
    if (outcome != DONE) {
        goto end;
    }
    if (form.opcode != SET_DATA) {
        Py_ssize_t parent_bytes = path_bytes - 1;
        while (parent_bytes >= 0 && text[parent_bytes] != '/') {
            parent_bytes--;
        }
        if (parent_bytes < 0) {
            outcome = DEFER;
            goto end;
        }
        const char *last =
            adding->last == NULL ? NULL : PyUnicode_AsUTF8AndSize(adding->last, NULL);
        if (last == NULL || adding->last_parent_bytes != parent_bytes ||
            memcmp(last, text, (size_t)parent_bytes) != 0) {
            outcome = has_parent(adding, text, parent_bytes);
            if (outcome != DONE) {
                goto end;
            }
            Py_XDECREF(adding->last);
            adding->last = Py_NewRef(put.path);
            adding->last_parent_bytes = parent_bytes;
        }
    }
    Py_ssize_t tail_bytes = form.opcode == SET_DATA ? 4 : adding->acl_bytes;
    if (adding->size + CREATE_OVERHEAD + path_bytes + value_bytes + tail_bytes > adding->room ||
        adding->operations >= adding->limit) {
        outcome = STOP;
    } else if (!write_op(adding, place, put.path, form, text, path_bytes, value, value_bytes)) {
        outcome = FAILED;
    }
end:
    put_free(&put);
    return outcome;
}

/* Add to the group what was written. */
static bool adding_finish(Adding *adding, PyObject *group, PyObject *batch)
{
    bool fine = true;
    if (adding->body.size) {
        PyObject *parts = PyObject_GetAttr(group, name_parts);
        PyObject *body = PyBytes_FromStringAndSize(adding->body.data, (Py_ssize_t)adding->body.size);
        fine = parts != NULL && body != NULL && PyList_Append(parts, body) == 0;
        Py_XDECREF(parts);
        Py_XDECREF(body);
    }
    if (fine && adding->ephemeral) {
        PyObject *session = PyObject_GetAttr(batch, name_session);
        fine = session != NULL && PyObject_SetAttr(group, name_session, session) == 0;
        Py_XDECREF(session);
    }
    return fine && PyObject_SetAttr(group, name_created, adding->created) == 0 &&
           set_number(group, name_size, adding->size) &&
           set_number(group, name_operations, adding->operations);
}

static bool adding_open(Adding *adding, PyObject *group, PyObject *batch, PyObject *changes,
                        PyObject *generations)
{
    return generations_read(&adding->known, generations) &&
           get_attribute(batch, name_requests, NULL, &adding->requests) &&
           get_attribute(batch, name_paths, NULL, &adding->paths) &&
           get_attribute(batch, name_seen, &PyDict_Type, &adding->seen) &&
           get_attribute(changes, name_deleted, &PySet_Type, &adding->deleted) &&
           get_attribute(changes, name_fleeting, &PySet_Type, &adding->fleeting) &&
           get_attribute(changes, name_made, &PySet_Type, &adding->made) &&
           get_attribute(group, name_ops, &PyList_Type, &adding->ops) &&
           get_attribute(group, name_created, NULL, &adding->created) &&
           get_number(group, name_size, &adding->size) &&
           get_number(group, name_operations, &adding->operations);
}

static void adding_close(Adding *adding)
{
    PyObject *held[] = {adding->requests, adding->paths, adding->seen,    adding->deleted,
                        adding->fleeting, adding->made,  adding->ops,   adding->created,
                        adding->last};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        Py_XDECREF(held[i]);
    }
    buffer_free(&adding->body);
}

PyObject *add_puts(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *group, *batch, *changes, *generations, *places, *acl;
    Py_ssize_t start;
    Adding adding = {0};
    if (!PyArg_ParseTuple(arguments, "OOOOOnSnn:add_puts", &group, &batch, &changes, &generations,
                          &places, &start, &acl, &adding.room, &adding.limit)) {
        return NULL;
    }
    adding.acl = PyBytes_AsString(acl);
    adding.acl_bytes = PyBytes_Size(acl);
    Py_ssize_t count = length_of(places), end = start;
    Outcome outcome = DEFER;
    if (start >= 0 && count >= 0 && adding.acl_bytes >= 4 &&
        adding_open(&adding, group, batch, changes, generations)) {
        outcome = DONE;
    }
    while (outcome == DONE && end < count) {
        PyObject *place = item(places, end);
        outcome = place == NULL ? DEFER : add_put(&adding, place);
        Py_XDECREF(place);
        end += outcome == DONE;
    }
    PyObject *result = NULL;
    bool stopped = outcome == DONE || outcome == STOP;
    if (outcome == DEFER && PyErr_Occurred()) {
        PyErr_Clear();
    }
    if (outcome != FAILED && (adding.operations == 0 || end == start ||
                              adding_finish(&adding, group, batch))) {
        if (stopped) {
            result = PyLong_FromSsize_t(end);
        } else {
            PyObject *rest = Py_BuildValue("OOOOOnOnn", group, batch, changes, generations, places,
                                           end, acl, adding.room, adding.limit);
            result = rest == NULL ? NULL : defer("add_puts", rest);
            Py_XDECREF(rest);
        }
    }
    adding_close(&adding);
    return result;
}
