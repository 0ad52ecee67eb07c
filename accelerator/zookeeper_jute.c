/* Multi-reads, and the answers to them and to multis: twins of jute.py. */

#include "zookeeper.h"

/* An answer. */
typedef struct {
    const unsigned char *at;
    Py_ssize_t left;
} Answer;

static bool answer_open(Answer *answer, PyObject *buffer, Py_ssize_t offset)
{
    if (!PyBytes_Check(buffer) || offset < 0 || offset > PyBytes_Size(buffer)) {
        return false;
    }
    answer->at = (const unsigned char *)PyBytes_AsString(buffer) + offset;
    answer->left = PyBytes_Size(buffer) - offset;
    return true;
}

static void answer_skip(Answer *answer, Py_ssize_t count)
{
    answer->at += count;
    answer->left -= count;
}

/* Say whether the list of results ends here, and the packet, too. */
static bool answer_ends(const Answer *answer)
{
    return answer->left == HEADER_SIZE && get32(answer->at) == -1 && answer->at[4] != 0;
}

/* jute.multi_read */

PyObject *multi_read(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *reads;
    if (!PyArg_ParseTuple(arguments, "O:multi_read", &reads)) {
        return NULL;
    }
    Py_ssize_t count = length_of(reads);
    Buffer body = {0};
    PyObject *made = NULL;
    if (count < 0) {
        return defer("multi_read", arguments);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *read = item(reads, i);
        long long opcode = 0;
        char *path = NULL;
        Py_ssize_t path_bytes = 0;
        bool fine = read != NULL && number_at(read, 0, &opcode) && (int32_t)opcode == opcode &&
                    PyTuple_Size(read) == 2 &&
                    PyBytes_AsStringAndSize(PyTuple_GetItem(read, 1), &path, &path_bytes) == 0 &&
                    path_bytes <= INT32_MAX;
        char *at = fine ? buffer_grow(&body, (size_t)path_bytes + READ_OVERHEAD) : NULL;
        if (at != NULL) {
            at = put_header(at, (int32_t)opcode, path_bytes);
            memcpy(at, path, (size_t)path_bytes);
            at[path_bytes] = 0;
        }
        Py_XDECREF(read);
        if (at == NULL) {
            buffer_free(&body);
            return defer("multi_read", arguments);
        }
    }
    char *end = buffer_grow(&body, HEADER_SIZE);
    if (end != NULL) {
        put32(end, (uint32_t)-1);
        end[4] = 1;
        put32(end + 5, (uint32_t)-1);
        made = PyBytes_FromStringAndSize(body.data, (Py_ssize_t)body.size);
    }
    buffer_free(&body);
    return made;
}

/* jute.parse_multi_read */

/* The makers of what a multi-read gives. */
typedef struct {
    Maker node, stat, got;
} Nodes;

static bool nodes_open(Nodes *nodes)
{
    memset(nodes, 0, sizeof *nodes);
    return maker_open(&nodes->node, bound("ZNode"), 9) && maker_open(&nodes->stat, bound("Stat"), 7) &&
           maker_open(&nodes->got, bound("GetResult"), 2) &&
           maker_set(&nodes->stat, 5, Py_NewRef(Py_False)) &&
           maker_set(&nodes->stat, 6, Py_NewRef(Py_False));
}

static void nodes_close(Nodes *nodes)
{
    maker_close(&nodes->node);
    maker_close(&nodes->stat);
    maker_close(&nodes->got);
}

/* Make the result of a get of a path. */
static PyObject *make_got(Nodes *nodes, PyObject *path, PyObject *value, const unsigned char *stat)
{
    bool fine = maker_set(&nodes->got, 0, value) &&
                maker_set(&nodes->stat, 1, int32_at(stat + 32)) &&
                maker_set(&nodes->stat, 2, int64_at(stat + 8)) &&
                maker_set(&nodes->stat, 3, int64_at(stat + 16)) &&
                maker_set(&nodes->stat, 4, int64_at(stat + 24)) &&
                maker_set(&nodes->got, 1, make_stat(&nodes->stat, Py_NewRef(path)));
    PyObject *made = fine ? maker_make(&nodes->got) : NULL;
    return PyUnicode_CheckExact(path) ? untrack(made) : made;
}

/* Read one entry; return NULL if it is not a node or a code, perhaps with an error set. */
static PyObject *parse_entry(Answer *answer, long long asked, PyObject *path, Nodes *nodes)
{
    Maker *node = &nodes->node;
    if (answer->left < HEADER_SIZE + LENGTH_SIZE) {
        return NULL;
    }
    int32_t opcode = get32(answer->at);
    int32_t number = get32(answer->at + HEADER_SIZE);
    if (opcode == ERROR) {
        answer_skip(answer, HEADER_SIZE + LENGTH_SIZE);
        return PyLong_FromLong(number);
    }
    if (opcode != GET_DATA || asked != GET_DATA || number < -1) {
        return NULL;
    }
    Py_ssize_t value_bytes = number > 0 ? number : 0;
    if (answer->left - HEADER_SIZE - LENGTH_SIZE - STAT_SIZE < value_bytes) {
        return NULL;
    }
    answer_skip(answer, HEADER_SIZE + LENGTH_SIZE);
    PyObject *value = number < 0 ? Py_NewRef(Py_None)
                                 : PyBytes_FromStringAndSize((const char *)answer->at, value_bytes);
    answer_skip(answer, value_bytes);
    const unsigned char *stat = answer->at;
    answer_skip(answer, STAT_SIZE);
    if (path != Py_None && number >= 0 && get64(stat + 44) == 0) {
        return make_got(nodes, path, value, stat);
    }
    bool fine = maker_set(node, 0, value) && maker_set(node, 1, PyLong_FromLong(number)) &&
                maker_set(node, 2, int64_at(stat)) && maker_set(node, 3, int64_at(stat + 8)) &&
                maker_set(node, 4, int64_at(stat + 16)) && maker_set(node, 5, int64_at(stat + 24)) &&
                maker_set(node, 6, int32_at(stat + 32)) && maker_set(node, 7, int64_at(stat + 44)) &&
                maker_set(node, 8, int32_at(stat + 56));
    return fine ? untrack(maker_make(node)) : NULL;
}

/* Read a list of names with the Python function for that. */
static PyObject *parse_names(Answer *answer, PyObject *buffer)
{
    Py_ssize_t offset = PyBytes_Size(buffer) - answer->left + HEADER_SIZE;
    PyObject *read = bound("parse_names");
    PyObject *found = read == NULL ? NULL : PyObject_CallFunction(read, "On", buffer, offset);
    PyObject *names = NULL;
    Py_ssize_t end;
    if (found != NULL && PyArg_ParseTuple(found, "On", &names, &end)) {
        Py_ssize_t size = end - offset + HEADER_SIZE;
        names = size <= answer->left ? Py_NewRef(names) : NULL; /* The last name may be cut off. */
        answer_skip(answer, names == NULL ? 0 : size);
    }
    Py_XDECREF(found);
    return names;
}

PyObject *parse_multi_read(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *reads, *paths, *buffer;
    Py_ssize_t offset;
    Answer answer;
    Nodes nodes = {0};
    if (!PyArg_ParseTuple(arguments, "OOOn:parse_multi_read", &reads, &paths, &buffer, &offset)) {
        return NULL;
    }
    Py_ssize_t count = length_of(reads), named = length_of(paths);
    bool fine = count >= 0 && (named == 0 || named == count) &&
                answer_open(&answer, buffer, offset) && nodes_open(&nodes);
    PyObject *found = fine ? PyList_New(0) : NULL;
    for (Py_ssize_t i = 0; found != NULL && i < count; i++) {
        PyObject *read = item(reads, i), *path = named ? item(paths, i) : Py_NewRef(Py_None);
        PyObject *entry = NULL;
        long long asked;
        if (read != NULL && path != NULL && number_at(read, 0, &asked)) {
            bool names = asked == GET_CHILDREN && answer.left >= HEADER_SIZE &&
                         get32(answer.at) == GET_CHILDREN;
            entry = names ? parse_names(&answer, buffer) : parse_entry(&answer, asked, path, &nodes);
        }
        if (entry == NULL || PyList_Append(found, entry) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(read);
        Py_XDECREF(path);
        Py_XDECREF(entry);
    }
    nodes_close(&nodes);
    if (found == NULL || !answer_ends(&answer)) {
        Py_XDECREF(found);
        return defer("parse_multi_read", arguments);
    }
    return found;
}

/* jute.parse_multi */

/* Read the suffix of a sequential node with the Python function for that. */
static PyObject *parse_suffix(Answer *answer, PyObject *buffer, long long path_bytes)
{
    int32_t number = get32(answer->at + HEADER_SIZE);
    PyObject *read = bound("parse_suffix");
    return read == NULL
               ? NULL
               : PyObject_CallFunction(read, "iLiiOn", SEQUENTIAL, path_bytes, get32(answer->at),
                                       number, buffer, PyBytes_Size(buffer) - answer->left);
}

/* Read the result of one op. */
static bool parse_result(Answer *answer, PyObject *buffer, PyObject *op, PyObject *updates,
                         PyObject *suffixes)
{
    long long opcode, path_bytes;
    if (!number_at(op, 0, &opcode) || !number_at(op, 2, &path_bytes) ||
        answer->left < HEADER_SIZE) {
        return false;
    }
    const unsigned char *at = answer->at;
    int32_t done = get32(at);
    if (opcode == SET_DATA) {
        if (done != SET_DATA || answer->left < UPDATE_SIZE) {
            return false;
        }
        const unsigned char *stat = at + HEADER_SIZE;
        PyObject *update = untrack(PyTuple_New(7));
        bool fine = update != NULL;
        const int offsets[] = {0, 8, 16, 24, 32, 44};
        if (fine) {
            PyTuple_SetItem(update, 0, PyLong_FromLong(SET_DATA));
            for (int k = 0; k < 6; k++) {
                PyObject *field =
                    k == 4 ? int32_at(stat + offsets[k]) : int64_at(stat + offsets[k]);
                fine = fine && field != NULL;
                PyTuple_SetItem(update, k + 1, field);
            }
            fine = fine && PyList_Append(updates, update) == 0;
        }
        Py_XDECREF(update);
        answer_skip(answer, UPDATE_SIZE);
        return fine;
    }
    if (opcode == DELETE || opcode == CHECK) {
        answer_skip(answer, HEADER_SIZE);
        return done == opcode;
    }
    if (done != CREATE || answer->left < HEADER_SIZE + LENGTH_SIZE) {
        return false;
    }
    long long number = get32(at + HEADER_SIZE);
    if (opcode == SEQUENTIAL) {
        PyObject *suffix = parse_suffix(answer, buffer, path_bytes);
        bool fine = suffix != NULL && PyList_Append(suffixes, suffix) == 0;
        Py_XDECREF(suffix);
        if (!fine) {
            return false;
        }
    } else if (number != path_bytes) {
        return false;
    }
    if (number < 0 || number > answer->left - HEADER_SIZE - LENGTH_SIZE) {
        return false;
    }
    answer_skip(answer, HEADER_SIZE + LENGTH_SIZE + (Py_ssize_t)number);
    return true;
}

PyObject *parse_multi(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *ops, *buffer;
    Py_ssize_t offset;
    Answer answer;
    Maker done;
    if (!PyArg_ParseTuple(arguments, "OOn:parse_multi", &ops, &buffer, &offset)) {
        return NULL;
    }
    Py_ssize_t count = length_of(ops);
    if (count < 0 || !answer_open(&answer, buffer, offset) || answer.left < LENGTH_SIZE ||
        get32(answer.at) == ERROR || !maker_open(&done, bound("Done"), 2)) {
        return defer("parse_multi", arguments);
    }
    PyObject *updates = PyList_New(0), *suffixes = PyList_New(0);
    bool fine = updates != NULL && suffixes != NULL;
    for (Py_ssize_t i = 0; fine && i < count; i++) {
        PyObject *op = item(ops, i);
        fine = op != NULL && parse_result(&answer, buffer, op, updates, suffixes);
        Py_XDECREF(op);
    }
    fine = fine && answer_ends(&answer);
    fine = maker_set(&done, 0, updates) && maker_set(&done, 1, suffixes) && fine;
    PyObject *results = fine ? maker_make(&done) : NULL;
    maker_close(&done);
    return results != NULL ? results : defer("parse_multi", arguments);
}
