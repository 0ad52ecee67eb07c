/* The answers of a multi's ops: twins of outcomes.py. */

#include "zookeeper.h"

/* outcomes.answer_ops */

/* The makers of the Stats of created, ephemeral and set nodes. */
typedef struct {
    Maker created, fleeting, set;
} Stats;

static void stats_close(Stats *stats)
{
    maker_close(&stats->created);
    maker_close(&stats->fleeting);
    maker_close(&stats->set);
}

static bool stats_open(Stats *stats, PyObject *zxid, PyObject *when)
{
    memset(stats, 0, sizeof *stats);
    Maker *makers[] = {&stats->created, &stats->fleeting, &stats->set};
    for (int k = 0; k < 3; k++) {
        PyObject *ephemeral = k == 1 ? Py_True : Py_False;
        PyObject *version = PyLong_FromLong(0);
        if (!maker_open(makers[k], bound("Stat"), 7) || !maker_set(makers[k], 1, version) ||
            !maker_set(makers[k], 2, Py_NewRef(zxid)) || !maker_set(makers[k], 3, Py_NewRef(when)) ||
            !maker_set(makers[k], 4, Py_NewRef(when)) ||
            !maker_set(makers[k], 5, Py_NewRef(ephemeral)) ||
            !maker_set(makers[k], 6, Py_NewRef(ephemeral))) {
            return false;
        }
    }
    return true;
}

/* Make the Stat of a plain put that has set its node. */
static Outcome make_updated(Maker *stat, PyObject *request, PyObject *update, PyObject **made)
{
    PyObject *kind = request_attribute(request, name_kind);
    PyObject *options = request_attribute(request, name_options);
    PyObject *expected = request_attribute(request, name_expected_version);
    Outcome outcome = DEFER;
    long long owner;
    int is_put = kind == NULL ? -1 : is_kind(kind, name_put);
    if (is_put < 0 || options == NULL || expected == NULL || !number_at(update, 6, &owner)) {
        goto end;
    }
    long long version = expected == Py_None      ? 1
                        : PyLong_Check(expected) ? PyLong_AsLongLong(expected)
                                                 : 0;
    if (PyErr_Occurred()) {
        goto end;
    }
    if (!is_put || owner != 0 || options != Py_None || version <= 0) {
        outcome = STOP;
        goto end;
    }
    const Py_ssize_t fields[] = {5, 2, 3, 4}; /* version, mzxid, ctime, mtime */
    bool fine = PyTuple_Size(update) == 7;
    for (int k = 0; fine && k < 4; k++) {
        fine = maker_set(stat, k + 1, Py_NewRef(PyTuple_GetItem(update, fields[k])));
    }
    *made = fine ? make_stat(stat, request_attribute(request, name_path)) : NULL;
    outcome = *made == NULL ? DEFER : DONE;
end:
    Py_XDECREF(kind);
    Py_XDECREF(options);
    Py_XDECREF(expected);
    return outcome;
}

PyObject *answer_ops(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *ops, *requests, *answers, *updates, *zxid, *when;
    if (!PyArg_ParseTuple(arguments, "OOO!OOO:answer_ops", &ops, &requests, &PyList_Type,
                          &answers, &updates, &zxid, &when)) {
        return NULL;
    }
    Py_ssize_t count = length_of(ops), next_update = 0;
    Stats stats = {0};
    PyObject *left = PyList_New(0);
    bool fine = left != NULL && count >= 0 && stats_open(&stats, zxid, when);
    for (Py_ssize_t k = 0; fine && k < count; k++) {
        PyObject *op = item(ops, k), *request = NULL, *update = NULL, *made = NULL;
        long long opcode = 0, place = 0;
        Outcome outcome = STOP;
        if (op == NULL || !read_op(op, &opcode, &place) ||
            (request = item(requests, (Py_ssize_t)place)) == NULL) {
            outcome = DEFER;
        } else if ((opcode == CREATE || opcode == EPHEMERAL) && zxid != Py_None) {
            Maker *maker = opcode == CREATE ? &stats.created : &stats.fleeting;
            made = make_stat(maker, request_attribute(request, name_path));
            outcome = made == NULL ? DEFER : DONE;
        } else if (opcode == SET_DATA) {
            update = item(updates, next_update++);
            outcome = update == NULL ? DEFER : make_updated(&stats.set, request, update, &made);
        } else if (opcode == DELETE) {
            made = Py_NewRef(Py_None);
            outcome = DONE;
        }
        if (outcome == DONE) {
            fine = PyList_SetItem(answers, (Py_ssize_t)place, made) == 0; /* steals it */
        } else if (outcome == STOP) {
            PyObject *entry = Py_BuildValue("LLO", opcode, place, update ? update : Py_None);
            fine = entry != NULL && PyList_Append(left, entry) == 0;
            Py_XDECREF(entry);
        } else {
            fine = false;
        }
        Py_XDECREF(op);
        Py_XDECREF(request);
        Py_XDECREF(update);
    }
    stats_close(&stats);
    if (!fine) {
        Py_XDECREF(left);
        return defer("answer_ops", arguments); /* It sets the same answers again. */
    }
    return left;
}

/* outcomes.note_ops */

static bool note_size(PyObject *request, PyObject *path, PyObject *young, Py_ssize_t *values,
                      Py_ssize_t *value_bytes)
{
    PyObject *value = request_attribute(request, name_value);
    if (value == NULL || value == Py_None) {
        Py_XDECREF(value);
        return value != NULL;
    }
    Py_ssize_t bytes = PyBytes_Check(value) ? PyBytes_Size(value) : -1;
    PyObject *size = bytes < 0 ? NULL : PyLong_FromSsize_t(bytes);
    bool fine = size != NULL && PyDict_SetItem(young, path, size) == 0;
    Py_DECREF(value);
    Py_XDECREF(size);
    *values += 1;
    *value_bytes += bytes;
    return fine;
}

static bool forget(PyObject *sizes, PyObject *path)
{
    int there = PyDict_Contains(sizes, path);
    return there == 0 || (there > 0 && PyDict_DelItem(sizes, path) == 0);
}

PyObject *note_ops(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *ops, *requests, *paths, *generations;
    Generations known;
    if (!PyArg_ParseTuple(arguments, "OOOO:note_ops", &ops, &requests, &paths, &generations)) {
        return NULL;
    }
    Py_ssize_t count = length_of(ops), values = 0, value_bytes = 0;
    bool fine = count >= 0 && generations_read(&known, generations);
    for (Py_ssize_t k = 0; fine && k < count; k++) {
        PyObject *op = item(ops, k), *request = NULL, *path = NULL;
        long long opcode, place;
        fine = op != NULL && read_op(op, &opcode, &place);
        if (fine && opcode == DELETE) {
            path = item(paths, (Py_ssize_t)place);
            fine = path != NULL && forget(known.young, path) && forget(known.old, path);
        } else if (fine && (opcode == CREATE || opcode == SET_DATA || opcode == EPHEMERAL)) {
            path = item(paths, (Py_ssize_t)place);
            request = item(requests, (Py_ssize_t)place);
            fine = path != NULL && request != NULL &&
                   note_size(request, path, known.young, &values, &value_bytes);
        }
        Py_XDECREF(op);
        Py_XDECREF(path);
        Py_XDECREF(request);
    }
    /* The twin notes the same again. */
    return fine ? Py_BuildValue("nn", values, value_bytes) : defer("note_ops", arguments);
}
