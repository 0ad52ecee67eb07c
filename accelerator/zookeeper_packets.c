/* Reads in packets: a twin of packets.py. */

#include "zookeeper.h"

typedef struct {
    Generations known;
    PyObject *reads, *encoded; /* of the packet */
    PyObject *opcodes, *paths, *alone;
    Py_ssize_t count, answer_bytes, sent_bytes; /* of the packet */
    Py_ssize_t guess, longest, usual;
    Py_ssize_t added, unknown;
} Packing;

static Outcome add_read(Packing *packing, PyObject *place)
{
    long long i = PyLong_Check(place) ? PyLong_AsLongLong(place) : -1;
    PyObject *asked = i < 0 ? NULL : item(packing->opcodes, (Py_ssize_t)i);
    PyObject *path = asked == NULL ? NULL : item(packing->paths, (Py_ssize_t)i);
    PyObject *entry = NULL, *size;
    Py_ssize_t bytes, expected = packing->guess;
    Outcome outcome = DEFER;
    const char *text = path == NULL || !PyUnicode_Check(path)
                           ? NULL
                           : PyUnicode_AsUTF8AndSize(path, &bytes);
    long opcode = asked != NULL && PyLong_Check(asked) ? PyLong_AsLong(asked) : -1;
    if (text == NULL || opcode < 0) {
        goto end;
    }
    int alone = PySet_Contains(packing->alone, place);
    if (alone < 0 || !find_size(&packing->known, path, &size)) {
        outcome = FAILED;
        goto end;
    }
    bool guessed = size == NULL;
    if (!guessed) {
        long long known = PyLong_AsLongLong(size);
        if (known < -1 || known > INT32_MAX) {
            goto end;
        }
        expected = ENTRY_BYTES + (Py_ssize_t)known;
    }
    Py_ssize_t more = READ_OVERHEAD + bytes;
    outcome = STOP;
    if (alone || bytes > packing->longest || (opcode == EXISTS && expected > SMALL) ||
        (packing->count && (packing->count >= PACKET_READS ||
                            packing->answer_bytes + expected > ANSWER_BYTES ||
                            packing->sent_bytes + more > packing->usual))) {
        goto end;
    }
    entry = untrack(PyTuple_New(2));
    if (entry == NULL ||
        PyTuple_SetItem(entry, 0, PyLong_FromLong(opcode == EXISTS ? GET_DATA : opcode)) < 0 ||
        PyTuple_SetItem(entry, 1, PyBytes_FromStringAndSize(text, bytes)) < 0 ||
        PyErr_Occurred() || PyList_Append(packing->encoded, entry) < 0 ||
        PyList_Append(packing->reads, place) < 0) {
        outcome = FAILED;
        goto end;
    }
    packing->count++;
    packing->answer_bytes += expected;
    packing->sent_bytes += more;
    packing->added += expected;
    packing->unknown += guessed;
    outcome = DONE;
end:
    Py_XDECREF(asked);
    Py_XDECREF(path);
    Py_XDECREF(entry);
    return outcome;
}

PyObject *add_reads(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *packet, *waiting, *generations;
    Packing packing = {0};
    Py_ssize_t start, bytes_room, unknown_room;
    if (!PyArg_ParseTuple(arguments, "OOOOnO!Onnnnn:add_reads", &packet, &packing.opcodes,
                          &packing.paths, &waiting, &start, &PySet_Type, &packing.alone,
                          &generations, &packing.guess, &packing.longest, &packing.usual,
                          &bytes_room, &unknown_room)) {
        return NULL;
    }
    Py_ssize_t count = length_of(waiting), end = start;
    Outcome outcome = DEFER;
    if (start >= 0 && count >= 0 && generations_read(&packing.known, generations) &&
        get_attribute(packet, name_reads, &PyList_Type, &packing.reads) &&
        get_attribute(packet, name_encoded, &PyList_Type, &packing.encoded) &&
        get_number(packet, name_answer_bytes, &packing.answer_bytes) &&
        get_number(packet, name_sent_bytes, &packing.sent_bytes)) {
        packing.count = PyList_Size(packing.reads);
        outcome = DONE;
    }
    while (outcome == DONE && end < count && packing.added < bytes_room &&
           packing.unknown < unknown_room) {
        PyObject *place = item(waiting, end);
        outcome = place == NULL ? DEFER : add_read(&packing, place);
        Py_XDECREF(place);
        end += outcome == DONE;
    }
    PyObject *result = NULL;
    if (outcome == DEFER && end == start) {
        result = defer("add_reads", arguments);
    } else if (outcome != FAILED && set_number(packet, name_answer_bytes, packing.answer_bytes) &&
               set_number(packet, name_sent_bytes, packing.sent_bytes)) {
        /* What comes next is for the twin: it is met first by another call. */
        PyErr_Clear();
        result = Py_BuildValue("nnn", end, packing.added, packing.unknown);
    }
    Py_XDECREF(packing.reads);
    Py_XDECREF(packing.encoded);
    return result;
}

/* Put the result of one get in its place; return STOP for another entry. */
static Outcome place_value(PyObject *place, PyObject *entry, PyObject *paths, PyObject *endings,
                           PyObject *sizes, PyObject *got, Py_ssize_t *total)
{
    if ((PyObject *)Py_TYPE(entry) != got) {
        return STOP;
    }
    Py_ssize_t i = PyLong_AsSsize_t(place);
    Py_ssize_t bytes = i < 0 ? -1 : PyObject_Size(PyTuple_GetItem(entry, 0));
    PyObject *path = bytes < 0 ? NULL : item(paths, i);
    PyObject *size = path == NULL ? NULL : PyLong_FromSsize_t(bytes);
    bool fine = size != NULL && PyDict_SetItem(sizes, path, size) == 0 &&
                PyList_SetItem(endings, i, Py_NewRef(entry)) == 0;
    Py_XDECREF(path);
    Py_XDECREF(size);
    *total += fine ? bytes : 0;
    return fine ? DONE : DEFER;
}

PyObject *place_values(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *reads, *entries, *paths, *endings, *sizes, *got = bound("GetResult");
    if (got == NULL ||
        !PyArg_ParseTuple(arguments, "OOOO!O!:place_values", &reads, &entries, &paths, &PyList_Type,
                          &endings, &PyDict_Type, &sizes)) {
        return NULL;
    }
    Py_ssize_t count = length_of(entries), total = 0;
    PyObject *others = PyList_New(0);
    Outcome outcome = count >= 0 && count == length_of(reads) && others != NULL ? DONE : DEFER;
    for (Py_ssize_t k = 0; outcome == DONE && k < count; k++) {
        PyObject *place = item(reads, k), *entry = item(entries, k), *position;
        outcome = place == NULL || entry == NULL
                      ? DEFER
                      : place_value(place, entry, paths, endings, sizes, got, &total);
        if (outcome == STOP) {
            position = PyLong_FromSsize_t(k);
            outcome = position == NULL || PyList_Append(others, position) < 0 ? DEFER : DONE;
            Py_XDECREF(position);
        }
        Py_XDECREF(place);
        Py_XDECREF(entry);
    }
    if (outcome == DEFER) {
        Py_XDECREF(others);
        return defer("place_values", arguments);
    }
    return Py_BuildValue("(Nn)", others, total);
}
