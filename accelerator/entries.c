/* Entries, and the loops over a batch of them. The twins are in batching/. */

#include "accelerator.h"

#include <structmember.h>

/* The attributes of batching.entry.Entry that are objects. */
#define MEMBERS(X)                                                                                 \
    X(epoch) X(expected_version) X(future_state) X(key) X(kind) X(lane) X(options) X(path)         \
    X(session) X(sink) X(value) X(writes)
#define ATTRIBUTES(X) X(answer) X(caller) MEMBERS(X)

#define FIELD(name) PyObject *name;
typedef struct {
    PyObject_HEAD
    ATTRIBUTES(FIELD)
    double deadline, submitted;
    Py_ssize_t weight;
    int state, waits_for;
} Entry;
#undef FIELD

enum { QUEUED, SENT, ENDED, CANCELLED };

static PyTypeObject *entry_type;

static Entry *as_entry(PyObject *object)
{
    if (object != NULL && !Py_IS_TYPE(object, entry_type)) {
        PyErr_Format(PyExc_TypeError, "an Entry is needed, not %R", (PyObject *)Py_TYPE(object));
        return NULL;
    }
    return (Entry *)object;
}

/* The garbage collector would look at each of a thousand entries under way again and again. It needs
   to know only those that can be part of a cycle: their caller leads to a future, or their answer has
   a traceback. The others refer to nothing but their operation and the engine, which drops an entry
   when that has ended. */

static void track(PyObject *entry)
{
    if (!PyObject_GC_IsTracked(entry)) {
        PyObject_GC_Track(entry);
    }
}

/* Say whether an answer is a result of values only. */
static bool is_plain(PyObject *answer)
{
    return answer == Py_None || PyTuple_Check(answer);
}

PyObject *request_attribute(PyObject *request, PyObject *name)
{
    if (Py_IS_TYPE(request, entry_type)) {
        Entry *entry = (Entry *)request;
        PyObject *found = name == name_kind               ? entry->kind
                          : name == name_path             ? entry->path
                          : name == name_value            ? entry->value
                          : name == name_expected_version ? entry->expected_version
                          : name == name_options          ? entry->options
                                                          : NULL;
        if (found != NULL) {
            return Py_NewRef(found);
        }
    }
    return PyObject_GetAttr(request, name);
}

static void set(PyObject **field, PyObject *value)
{
    PyObject *old = *field;
    *field = Py_XNewRef(value);
    Py_XDECREF(old);
}

/* Say whether an attribute has been set; if not, set an error. */
static bool present(PyObject *value, const char *name)
{
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, name);
    }
    return value != NULL;
}

/* Return the size of a path as UTF-8, or -1 with an error. */
static Py_ssize_t path_bytes(PyObject *path)
{
    Py_ssize_t size;
    return PyUnicode_AsUTF8AndSize(path, &size) == NULL ? -1 : size;
}

/* What the entries of one call have in common. */
typedef struct {
    PyObject *kind, *sink; /* borrowed */
    PyObject *lane, *writes;
    double now, deadline;
    Py_ssize_t op_bytes;
    bool cyclic; /* whether the caller, or the sink, can lead back to the entry */
} Origin;

static void origin_free(Origin *origin)
{
    Py_CLEAR(origin->lane);
    Py_CLEAR(origin->writes);
}

/* Set the times of an origin. */
static bool origin_time(Origin *origin, PyObject *now, PyObject *timeout)
{
    PyObject *deadline = PyNumber_Add(now, timeout);
    if (deadline != NULL) {
        origin->now = PyFloat_AsDouble(now);
        origin->deadline = PyFloat_AsDouble(deadline);
        Py_DECREF(deadline);
    }
    return !PyErr_Occurred();
}

/* Fill an origin, to be freed in the end; return false with an error, and nothing to free. */
static bool origin_find(Origin *origin, PyObject *kind, PyObject *lanes, PyObject *sink,
                        PyObject *now, PyObject *timeout)
{
    *origin = (Origin){.kind = kind, .sink = sink};
    PyObject *op_bytes = NULL;
    if ((origin->lane = PyObject_GetItem(lanes, kind)) != NULL &&
        (origin->writes = PyObject_GetAttr(origin->lane, name_writes)) != NULL &&
        (op_bytes = PyObject_GetAttr(origin->lane, name_op_bytes)) != NULL) {
        origin->op_bytes = PyLong_AsSsize_t(op_bytes);
    }
    Py_XDECREF(op_bytes);
    if (PyErr_Occurred() || !origin_time(origin, now, timeout)) {
        origin_free(origin);
        return false;
    }
    return true;
}

/* Set the attributes of a new entry; return its weight, or -1 with an error. */
static Py_ssize_t fill(Entry *self, Origin *origin, PyObject *path, PyObject *value,
                       PyObject *expected, PyObject *options, PyObject *caller)
{
    Py_ssize_t of_path = path_bytes(path);
    Py_ssize_t of_value = of_path < 0 || value == Py_None ? 0 : PyObject_Size(value);
    if (of_path < 0 || of_value < 0) {
        return -1;
    }
    set(&self->kind, origin->kind);
    set(&self->path, path);
    set(&self->value, value);
    set(&self->expected_version, expected);
    set(&self->options, options);
    set(&self->lane, origin->lane);
    set(&self->writes, origin->writes);
    set(&self->sink, origin->sink);
    self->submitted = origin->now;
    self->deadline = origin->deadline;
    set(&self->caller, caller);
    set(&self->future_state, Py_None);
    set(&self->answer, Py_None);
    self->state = QUEUED;
    self->waits_for = 0;
    self->weight = origin->op_bytes + of_path + of_value;
    if (!origin->cyclic && options == Py_None && PyUnicode_CheckExact(path) &&
        (value == Py_None || PyBytes_CheckExact(value))) {
        PyObject_GC_UnTrack((PyObject *)self);
    }
    return self->weight;
}

/* Set what the options of a new entry decide. */
static bool read_options_of(PyObject *entry)
{
    PyObject *read = bound("read_options");
    PyObject *none = read ? PyObject_CallFunctionObjArgs(read, entry, NULL) : NULL;
    Py_XDECREF(none);
    return none != NULL;
}

static int init(Entry *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kind",  "path", "value", "expected_version", "options", "lanes",
                            "sink",  "now",  "timeout", "caller", NULL};
    PyObject *kind, *path, *value, *expected, *options, *lanes, *sink, *now, *timeout;
    PyObject *caller = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOOOO|O:Entry", names, &kind, &path, &value,
                                     &expected, &options, &lanes, &sink, &now, &timeout, &caller)) {
        return -1;
    }
    Origin origin;
    if (!origin_find(&origin, kind, lanes, sink, now, timeout)) {
        return -1;
    }
    origin.cyclic = caller != Py_None; /* Without a caller, the sink is a FutureSink. */
    int status = fill(self, &origin, path, value, expected, options, caller) < 0 ? -1 : 0;
    origin_free(&origin);
    if (status == 0 && options != Py_None && !read_options_of((PyObject *)self)) {
        status = -1;
    }
    return status;
}

static int traverse(Entry *self, visitproc visit, void *arg)
{
#define VISIT(name) Py_VISIT(self->name);
    ATTRIBUTES(VISIT)
#undef VISIT
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static int clear(Entry *self)
{
#define CLEAR(name) Py_CLEAR(self->name);
    ATTRIBUTES(CLEAR)
#undef CLEAR
    return 0;
}

static void dealloc(Entry *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyObject *get_field(PyObject *value, const char *name)
{
    return present(value, name) ? Py_NewRef(value) : NULL;
}

static PyObject *get_answer(Entry *self, void *unused)
{
    (void)unused;
    return get_field(self->answer, "answer");
}

/* An answer, or a caller, can make the entry part of a cycle. */
static int set_answer(Entry *self, PyObject *value, void *unused)
{
    (void)unused;
    if (value != NULL && !is_plain(value)) {
        track((PyObject *)self);
    }
    set(&self->answer, value);
    return 0;
}

static PyObject *get_caller(Entry *self, void *unused)
{
    (void)unused;
    return get_field(self->caller, "caller");
}

static int set_caller(Entry *self, PyObject *value, void *unused)
{
    (void)unused;
    if (value != NULL && value != Py_None) {
        track((PyObject *)self);
    }
    set(&self->caller, value);
    return 0;
}

static PyGetSetDef watched[] = {
    {"answer", (getter)get_answer, (setter)set_answer, NULL, NULL},
    {"caller", (getter)get_caller, (setter)set_caller, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
#define MEMBER(name) {#name, T_OBJECT_EX, offsetof(Entry, name), 0, NULL},
    MEMBERS(MEMBER)
#undef MEMBER
    {"deadline", T_DOUBLE, offsetof(Entry, deadline), 0, NULL},
    {"submitted", T_DOUBLE, offsetof(Entry, submitted), 0, NULL},
    {"weight", T_PYSSIZET, offsetof(Entry, weight), 0, NULL},
    {"state", T_INT, offsetof(Entry, state), 0, NULL},
    {"waits_for", T_INT, offsetof(Entry, waits_for), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, "An operation in the engine. See batching/entry.py."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, init},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {Py_tp_members, members},
    {Py_tp_getset, watched},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "batchkeeper._accelerator.Entry",
    .basicsize = sizeof(Entry),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = type_slots,
};

/* --- loops over entries */

/* A walk over an iterable. Most are lists, and an index costs a third of an iterator. */
typedef struct {
    PyObject *list, *iterator; /* one of them; the list is borrowed */
    Py_ssize_t at;
} Walk;

static bool walk_open(Walk *walk, PyObject *iterable)
{
    *walk = (Walk){.list = PyList_CheckExact(iterable) ? iterable : NULL};
    return walk->list != NULL || (walk->iterator = PyObject_GetIter(iterable)) != NULL;
}

/* Return a new reference, or NULL at the end or with an error. */
static PyObject *walk_next(Walk *walk)
{
    if (walk->list == NULL) {
        return PyIter_Next(walk->iterator);
    }
    return walk->at < PyList_Size(walk->list) ? Py_NewRef(PyList_GetItem(walk->list, walk->at++))
                                              : NULL;
}

/* Call a function with each entry of an iterable, until it fails. */
static int each(PyObject *entries, int (*visit)(Entry *entry, void *context), void *context)
{
    Walk walk;
    if (!walk_open(&walk, entries)) {
        return -1;
    }
    int status = 0;
    PyObject *item;
    while (status == 0 && (item = walk_next(&walk)) != NULL) {
        Entry *entry = as_entry(item);
        status = entry == NULL ? -1 : visit(entry, context);
        Py_DECREF(item);
    }
    Py_XDECREF(walk.iterator);
    return PyErr_Occurred() ? -1 : status;
}

static PyObject *column(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *requests, *name;
    Walk walk;
    if (!PyArg_ParseTuple(args, "OO!:column", &requests, &PyUnicode_Type, &name) ||
        !walk_open(&walk, requests)) {
        return NULL;
    }
    PyObject *values = PyList_New(0), *request;
    while (values != NULL && (request = walk_next(&walk)) != NULL) {
        PyObject *value = request_attribute(request, name);
        if (value == NULL || PyList_Append(values, value) < 0) {
            Py_CLEAR(values);
        }
        Py_XDECREF(value);
        Py_DECREF(request);
    }
    Py_XDECREF(walk.iterator);
    if (PyErr_Occurred()) {
        Py_CLEAR(values);
    }
    return values;
}

static int move_one(Entry *entry, long state)
{
    int from = entry->state;
    bool may = from == QUEUED ? state != QUEUED : from == SENT && state == ENDED;
    if (!may) {
        PyObject *wrong = Py_BuildValue("(li)", state, from);
        if (wrong != NULL) {
            PyErr_SetObject(PyExc_AssertionError, wrong);
            Py_DECREF(wrong);
        }
        return -1;
    }
    entry->state = (int)state;
    return 0;
}

static int move_to(Entry *entry, void *state)
{
    return move_one(entry, *(long *)state);
}

static PyObject *move(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *entries;
    long state;
    if (!PyArg_ParseTuple(args, "Ol:move", &entries, &state)) {
        return NULL;
    }
    if (state < SENT || state > CANCELLED) {
        PyObject *unknown = PyLong_FromLong(state);
        PyErr_SetObject(PyExc_KeyError, unknown);
        Py_XDECREF(unknown);
        return NULL;
    }
    return each(entries, move_to, &state) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *take_entries(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *gathered;
    Py_ssize_t max_ops, max_bytes, size = 0, passed = 0;
    if (!PyArg_ParseTuple(args, "Onn:take_entries", &gathered, &max_ops, &max_bytes)) {
        return NULL;
    }
    PyObject *batch = PyList_New(0);
    PyObject *popleft = PyObject_GetAttr(gathered, name_popleft);
    if (batch == NULL || popleft == NULL) {
        goto failed;
    }
    for (Py_ssize_t left = PyObject_Size(gathered); left > 0; left--) {
        PyObject *item = PyObject_CallNoArgs(popleft);
        Entry *entry = item == NULL ? NULL : as_entry(item);
        if (entry == NULL) {
            Py_XDECREF(item);
            goto failed;
        }
        passed++;
        if (entry->state != QUEUED) {
            Py_DECREF(item);
            continue;
        }
        Py_ssize_t weight = entry->weight;
        if (size + weight > max_bytes && PyList_Size(batch) > 0) {
            PyObject *none = PyObject_CallMethod(gathered, "appendleft", "O", item);
            Py_DECREF(item);
            if (none == NULL) {
                goto failed;
            }
            Py_DECREF(none);
            passed--;
            break;
        }
        size += weight;
        entry->state = SENT;
        int status = PyList_Append(batch, item);
        Py_DECREF(item);
        if (status < 0) {
            goto failed;
        }
        if (PyList_Size(batch) == max_ops) {
            break;
        }
    }
    if (PyErr_Occurred()) {
        goto failed;
    }
    Py_DECREF(popleft);
    return Py_BuildValue("(Nnn)", batch, size, passed);
failed:
    Py_XDECREF(batch);
    Py_XDECREF(popleft);
    return NULL;
}

static PyObject *end_sent(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *batch, *answers;
    if (!PyArg_ParseTuple(args, "OO:end_sent", &batch, &answers)) {
        return NULL;
    }
    PyObject *ended = PyList_New(0);
    PyObject *item = NULL, *answer = NULL;
    Walk entries = {0}, given = {0};
    if (ended == NULL || !walk_open(&entries, batch) || !walk_open(&given, answers)) {
        goto failed;
    }
    while ((item = walk_next(&entries)) != NULL) {
        Entry *entry = as_entry(item);
        if (entry == NULL) {
            goto failed;
        }
        if ((answer = walk_next(&given)) == NULL) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "zip() argument 2 is shorter than argument 1");
            }
            goto failed;
        }
        if (entry->state == SENT) {
            set_answer(entry, answer, NULL);
            entry->state = ENDED;
            if (PyList_Append(ended, item) < 0) {
                goto failed;
            }
        }
        Py_CLEAR(item);
        Py_CLEAR(answer);
    }
    if (!PyErr_Occurred() && (answer = walk_next(&given)) != NULL) {
        PyErr_SetString(PyExc_ValueError, "zip() argument 2 is longer than argument 1");
    }
    if (PyErr_Occurred()) {
        goto failed;
    }
    Py_XDECREF(entries.iterator);
    Py_XDECREF(given.iterator);
    return ended;
failed:
    Py_XDECREF(item);
    Py_XDECREF(answer);
    Py_XDECREF(ended);
    Py_XDECREF(entries.iterator);
    Py_XDECREF(given.iterator);
    return NULL;
}

static int forget(Entry *entry, void *context)
{
    (void)context;
    set(&entry->value, Py_None);
    set(&entry->options, Py_None);
    return 0;
}

static PyObject *forget_contents(PyObject *module, PyObject *entries)
{
    (void)module;
    return each(entries, forget, NULL) < 0 ? NULL : Py_NewRef(Py_None);
}

/* Lines: `at` has the entry that is alone at a path, or a line. */
typedef struct {
    PyObject *at;
    PyObject *several; /* the entries with several keys, or none */
    PyObject *others;
    PyObject *type; /* of a line */
    Py_ssize_t number;
} Lines;

/* Say whether the order key of an entry is its path. */
static bool by_path(Entry *entry)
{
    return entry->options == Py_None || entry->key == entry->path;
}

/* Let an entry enter the line of one of several paths; return 1 if that is up to Python. */
static int stand(Lines *lines, PyObject *path, Entry *entry)
{
    PyObject *line = PyDict_GetItemWithError(lines->at, path);
    if (line == NULL) {
        return PyErr_Occurred() ? -1 : PyDict_SetItem(lines->at, path, (PyObject *)entry);
    }
    if (line == (PyObject *)entry) {
        return 0;
    }
    if ((PyObject *)Py_TYPE(line) != lines->type) {
        return 1;
    }
    PyObject *writing = PyObject_GetAttr(line, name_writing);
    PyObject *waiting = PyObject_GetAttr(line, name_waiting);
    PyObject *going = PyObject_GetAttr(line, name_going);
    PyObject *checked = PyObject_GetAttr(entry->options, name_checked);
    int status = -1;
    if (writing && waiting && going && checked) {
        int only_checks = PySequence_Contains(checked, path);
        Py_ssize_t behind = PyObject_Size(waiting);
        status = only_checks < 0 || behind < 0 ? -1 : !only_checks || behind || writing != Py_False;
        if (status == 0) {
            status = PySet_Add(going, (PyObject *)entry);
        }
    }
    Py_XDECREF(writing);
    Py_XDECREF(waiting);
    Py_XDECREF(going);
    Py_XDECREF(checked);
    return status;
}

static int enter_one(Entry *entry, void *context)
{
    Lines *lines = context;
    int status = 1;
    if (!present(entry->path, "path") || !present(entry->options, "options")) {
        return -1;
    }
    if (by_path(entry)) {
        PyObject *line = PyDict_GetItemWithError(lines->at, entry->path);
        if (line == NULL) {
            status = PyErr_Occurred()
                         ? -1
                         : PyDict_SetItem(lines->at, entry->path, (PyObject *)entry);
        }
    } else if (entry->key != NULL && PyTuple_Check(entry->key)) {
        status = 0;
        for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(entry->key); i++) {
            status = stand(lines, PyTuple_GetItem(entry->key, i), entry);
        }
        if (status == 0) {
            PyObject *zero = PyLong_FromLong(0);
            status = zero ? PyDict_SetItem(lines->several, (PyObject *)entry, zero) : -1;
            Py_XDECREF(zero);
        }
    }
    lines->number += status == 0;
    return status;
}

static PyObject *enter_alone(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *entries;
    Lines lines = {.number = 0};
    if (!PyArg_ParseTuple(args, "O!O!O:enter_alone", &PyDict_Type, &lines.at, &PyDict_Type,
                          &lines.several, &entries) ||
        (lines.type = bound("Line")) == NULL) {
        return NULL;
    }
    return each(entries, enter_one, &lines) < 0 ? NULL : PyLong_FromSsize_t(lines.number);
}

/* Say whether an entry in a line may hold up somebody there; -1 with an error. */
static int holds(Lines *lines, PyObject *path, Entry *entry)
{
    PyObject *line = PyDict_GetItemWithError(lines->at, path);
    if (line == (PyObject *)entry) {
        return 0;
    }
    if (line == NULL || (PyObject *)Py_TYPE(line) != lines->type) {
        return PyErr_Occurred() ? -1 : 1;
    }
    PyObject *waiting = PyObject_GetAttr(line, name_waiting);
    Py_ssize_t behind = waiting == NULL ? -1 : PyObject_Size(waiting);
    Py_XDECREF(waiting);
    return behind < 0 ? -1 : behind > 0;
}

/* Remove an entry from the line of one of several paths, where nobody waits. */
static int part_from(Lines *lines, PyObject *path, Entry *entry)
{
    PyObject *line = PyDict_GetItemWithError(lines->at, path);
    if (line == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetObject(PyExc_KeyError, path);
        }
        return -1;
    }
    Py_ssize_t left = 0;
    if (line != (PyObject *)entry) {
        PyObject *going = PyObject_GetAttr(line, name_going);
        left = going == NULL || PySet_Discard(going, (PyObject *)entry) < 0 ? -1 : PySet_Size(going);
        Py_XDECREF(going);
    }
    return left < 0 ? -1 : left > 0 ? 0 : PyDict_DelItem(lines->at, path);
}

static int leave_one(Entry *entry, void *context)
{
    Lines *lines = context;
    if (!present(entry->path, "path") || !present(entry->options, "options")) {
        return -1;
    }
    if (by_path(entry)) {
        PyObject *line = PyDict_GetItemWithError(lines->at, entry->path);
        if (line == (PyObject *)entry) {
            return PyDict_DelItem(lines->at, entry->path);
        }
        if (line == NULL) {
            return PyErr_Occurred() ? -1 : 0;
        }
    } else if (entry->key != NULL && PyTuple_Check(entry->key)) {
        int status = 0;
        for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(entry->key); i++) {
            status = holds(lines, PyTuple_GetItem(entry->key, i), entry);
        }
        if (status <= 0) {
            for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(entry->key); i++) {
                status = part_from(lines, PyTuple_GetItem(entry->key, i), entry);
            }
            return status < 0 ? -1 : PyDict_DelItem(lines->several, (PyObject *)entry);
        }
    }
    return PyList_Append(lines->others, (PyObject *)entry);
}

static PyObject *leave_alone(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *entries;
    Lines lines = {.number = 0};
    if (!PyArg_ParseTuple(args, "O!O!O:leave_alone", &PyDict_Type, &lines.at, &PyDict_Type,
                          &lines.several, &entries) ||
        (lines.type = bound("Line")) == NULL || (lines.others = PyList_New(0)) == NULL) {
        return NULL;
    }
    if (each(entries, leave_one, &lines) < 0) {
        Py_CLEAR(lines.others);
    }
    return lines.others;
}

static int add_weight(Entry *entry, void *total)
{
    *(Py_ssize_t *)total += entry->weight;
    return 0;
}

static PyObject *total_weight(PyObject *module, PyObject *entries)
{
    (void)module;
    Py_ssize_t total = 0;
    return each(entries, add_weight, &total) < 0 ? NULL : PyLong_FromSsize_t(total);
}

/* The earliest and the latest deadline. */
typedef struct {
    double first, last;
} Ends;

static int extend(Entry *entry, void *context)
{
    Ends *ends = context;
    ends->first = entry->deadline < ends->first ? entry->deadline : ends->first;
    ends->last = entry->deadline > ends->last ? entry->deadline : ends->last;
    return 0;
}

static PyObject *deadlines(PyObject *module, PyObject *entries)
{
    (void)module;
    Ends ends = {Py_HUGE_VAL, -Py_HUGE_VAL};
    return each(entries, extend, &ends) < 0 ? NULL : Py_BuildValue("(dd)", ends.first, ends.last);
}

static int count_in(Entry *entry, void *epoch)
{
    set(&entry->epoch, epoch);
    return 0;
}

static PyObject *assign_epoch(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *entries, *epoch;
    if (!PyArg_ParseTuple(args, "OO:assign_epoch", &entries, &epoch)) {
        return NULL;
    }
    return each(entries, count_in, epoch) < 0 ? NULL : Py_NewRef(Py_None);
}

typedef struct {
    PyObject *state;
    PyObject *watched;
} Ending;

static int end_one(Entry *entry, void *context)
{
    Ending *ending = context;
    if (!present(entry->caller, "caller")) {
        return -1;
    }
    if (entry->caller == Py_None) {
        set(&entry->future_state, ending->state);
        return 0;
    }
    return PyList_Append(ending->watched, (PyObject *)entry);
}

static PyObject *end_unwatched(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *entries;
    Ending ending;
    if (!PyArg_ParseTuple(args, "OO:end_unwatched", &entries, &ending.state) ||
        (ending.watched = PyList_New(0)) == NULL) {
        return NULL;
    }
    if (each(entries, end_one, &ending) < 0) {
        Py_CLEAR(ending.watched);
    }
    return ending.watched;
}

typedef struct {
    size_t offset;
    PyObject *first;
} Common;

static int compare(Entry *entry, void *context)
{
    Common *common = context;
    PyObject *value = *(PyObject **)((char *)entry + common->offset);
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "an entry lacks the attribute");
        return -1;
    }
    if (common->first == NULL) {
        common->first = Py_NewRef(value);
        return 0;
    }
    if (common->first == value) {
        return 0;
    }
    int equal = PyObject_RichCompareBool(common->first, value, Py_EQ);
    return equal < 0 ? -1 : !equal;
}

static PyObject *common(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *entries;
    const char *name;
    if (!PyArg_ParseTuple(args, "Os:common", &entries, &name)) {
        return NULL;
    }
    PyMemberDef *member = members;
    while (member->name != NULL && strcmp(member->name, name) != 0) {
        member++;
    }
    if (member->name == NULL || member->type != T_OBJECT_EX) {
        return PyErr_Format(PyExc_AttributeError, "%s", name);
    }
    Common found = {.offset = (size_t)member->offset, .first = NULL};
    int status = each(entries, compare, &found);
    PyObject *result = status == 0 && found.first != NULL ? found.first : Py_None;
    result = status < 0 ? NULL : Py_NewRef(result);
    Py_XDECREF(found.first);
    return result;
}

typedef struct {
    double now;
    PyObject *waits;
} Waits;

static int add_wait(Entry *entry, void *context)
{
    Waits *waits = context;
    PyObject *wait = PyFloat_FromDouble(waits->now - entry->submitted);
    int status = wait == NULL ? -1 : PyList_Append(waits->waits, wait);
    Py_XDECREF(wait);
    return status;
}

static PyObject *waited(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *entries;
    Waits waits;
    if (!PyArg_ParseTuple(args, "Od:waited", &entries, &waits.now) ||
        (waits.waits = PyList_New(0)) == NULL) {
        return NULL;
    }
    if (each(entries, add_wait, &waits) < 0) {
        Py_CLEAR(waits.waits);
    }
    return waits.waits;
}

static int is_result(Entry *entry, void *results)
{
    if (!present(entry->answer, "answer")) {
        return -1;
    }
    int found = PySet_Contains(results, (PyObject *)Py_TYPE(entry->answer));
    return found < 0 ? -1 : !found;
}

static PyObject *all_results(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *entries, *results;
    if (!PyArg_ParseTuple(args, "OO:all_results", &entries, &results)) {
        return NULL;
    }
    int status = each(entries, is_result, results);
    return status < 0 ? NULL : PyBool_FromLong(status == 0);
}

/* --- the entrance: the twin is in batching/futures.py */

/* Who lets the operations of one sink in. */
typedef struct {
    PyObject_HEAD
    PyObject *sink, *timeout, *lanes, *queues, *intake;
    PyObject *submit, *take_in, *take_back, *append; /* methods of the engine and of its intake */
    PyObject *clock, *make; /* time.monotonic, and the class of the futures */
    Origin last;            /* of the last operation; most are of its kind */
} Entrance;

#define PARTS(X)                                                                                   \
    X(sink) X(timeout) X(lanes) X(queues) X(intake) X(submit) X(take_in) X(take_back) X(append)    \
    X(clock) X(make) X(last.lane) X(last.writes) X(last.kind)

static int entrance_traverse(Entrance *self, visitproc visit, void *arg)
{
#define VISIT(name) Py_VISIT(self->name);
    PARTS(VISIT)
#undef VISIT
    Py_VISIT(Py_TYPE((PyObject *)self));
    return 0;
}

static int entrance_clear(Entrance *self)
{
#define CLEAR(name) Py_CLEAR(self->name);
    PARTS(CLEAR)
#undef CLEAR
    return 0;
}

static int entrance_init(Entrance *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"engine", "sink", "timeout", NULL};
    PyObject *engine, *sink, *timeout;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:Entrance", names, &engine, &sink,
                                     &timeout)) {
        return -1;
    }
    if (self->make != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "an Entrance is made once");
        return -1;
    }
    PyObject *make = bound("OperationFuture"), *time = make ? bound("time") : NULL;
    if (time == NULL || (self->clock = PyObject_GetAttr(time, name_monotonic)) == NULL ||
        (self->queues = PyObject_GetAttrString(engine, "queues")) == NULL ||
        (self->intake = PyObject_GetAttrString(self->queues, "intake")) == NULL ||
        (self->append = PyObject_GetAttrString(self->intake, "append")) == NULL ||
        (self->lanes = PyObject_GetAttrString(engine, "lanes")) == NULL ||
        (self->submit = PyObject_GetAttrString(engine, "submit")) == NULL ||
        (self->take_in = PyObject_GetAttrString(engine, "take_in")) == NULL ||
        (self->take_back = PyObject_GetAttrString(engine, "take_back")) == NULL) {
        entrance_clear(self); /* It may be called again. */
        return -1;
    }
    self->sink = Py_NewRef(sink);
    self->timeout = Py_NewRef(timeout);
    self->make = Py_NewRef(make); /* last: it says that all is there */
    return 0;
}

static void entrance_dealloc(Entrance *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    entrance_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Let an entry lie in the intake, if it may. Return 1 if somebody has to look at it now, 0 if not, -1
   with an error, and -2 if it may not lie there. */
static int lay(Entrance *self, Entry *entry)
{
    Py_ssize_t allowance, light;
    double next = -1;
    if (!get_number(entry->lane, name_allowance, &allowance) ||
        !get_number(entry->lane, name_light, &light)) {
        return PyErr_Occurred() ? -1 : -2; /* a negative one allows nothing */
    }
    if (PyObject_Size(self->intake) >= allowance || entry->weight > light) {
        return PyErr_Occurred() ? -1 : -2;
    }
    PyObject *none = PyObject_CallFunctionObjArgs(self->append, entry, NULL);
    PyObject *watched = none ? PyObject_GetAttr(self->queues, name_next_deadline) : NULL;
    if (watched != NULL) {
        next = PyFloat_AsDouble(watched);
    }
    Py_XDECREF(watched);
    Py_XDECREF(none);
    /* Again, as in the twin. */
    bool given = get_number(entry->lane, name_allowance, &allowance);
    bool now = !given || PyObject_Size(self->intake) > allowance || entry->deadline < next;
    return PyErr_Occurred() ? -1 : now;
}

/* Fill an origin, to be freed in the end. */
static bool origin_again(Entrance *self, Origin *origin, PyObject *kind, PyObject *now,
                         PyObject *seconds)
{
    if (self->last.kind != kind) {
        Origin found;
        if (!origin_find(&found, kind, self->lanes, self->sink, now, seconds)) {
            return false;
        }
        Origin old = self->last;
        self->last = found;
        Py_INCREF(kind);
        Py_XDECREF(old.kind);
        origin_free(&old);
    }
    /* A copy: an allocation may run finalizers, and these may call the store. */
    *origin = self->last;
    Py_INCREF(origin->lane);
    Py_INCREF(origin->writes);
    if (origin_time(origin, now, seconds)) {
        return true;
    }
    origin_free(origin);
    return false;
}

/* Return the entry of an operation, or NULL with an error. */
static PyObject *entry_for(Entrance *self, PyObject *const *of, PyObject *seconds)
{
    Origin origin;
    PyObject *now = PyObject_CallNoArgs(self->clock);
    bool fine = now != NULL && origin_again(self, &origin, of[0], now, seconds);
    Py_XDECREF(now);
    if (!fine) {
        return NULL;
    }
    PyObject *entry = PyType_GenericNew(entry_type, NULL, NULL);
    if (entry != NULL && (fill((Entry *)entry, &origin, of[1], of[3], of[4], of[5], Py_None) < 0 ||
                          (of[5] != Py_None && !read_options_of(entry)))) {
        Py_CLEAR(entry);
    }
    origin_free(&origin);
    return entry;
}

/* Let the engine see to an entry that lies in the intake; return false with an error. */
static bool arrive(Entrance *self, PyObject *entry)
{
    PyObject *none = PyObject_CallFunctionObjArgs(self->take_in, entry, NULL);
    if (none == NULL) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject *refusal = bound("MetadataStoreError"), *taken = NULL;
        if (refusal != NULL && !PyErr_GivenExceptionMatches(type, refusal)) {
            /* Ctrl-C, perhaps before the call had begun. */
            taken = PyObject_CallFunction(self->take_back, "[O]", entry);
        }
        PyErr_Clear();
        Py_XDECREF(taken);
        PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(none);
    return none != NULL;
}

static PyObject *entrance_enter(Entrance *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *of[] = {NULL, NULL, NULL, Py_None, Py_None, Py_None};
    if (count < 3 || count > 6) {
        PyErr_SetString(PyExc_TypeError, "a kind, a path and a timeout are needed, and their like");
        return NULL;
    }
    if (self->make == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "an Entrance needs an engine");
        return NULL;
    }
    memcpy(of, args, (size_t)count * sizeof *args);
    PyObject *seconds = Py_NewRef(self->timeout);
    if (of[2] != Py_None) {
        PyObject *check = bound("check_seconds");
        Py_DECREF(seconds);
        seconds = check ? PyObject_CallFunction(check, "sO", "timeout", of[2]) : NULL;
    }
    PyObject *entry = seconds ? entry_for(self, of, seconds) : NULL;
    Py_XDECREF(seconds);
    if (entry == NULL) {
        return NULL;
    }
    int laid = lay(self, (Entry *)entry);
    if (laid > 0) {
        laid = arrive(self, entry) ? 0 : -1;
    } else if (laid == -2) {
        PyObject *none = PyObject_CallFunctionObjArgs(self->submit, entry, NULL);
        laid = none != NULL ? 0 : -1;
        Py_XDECREF(none);
    }
    /* Its class has no __new__, and the __init__ of object. */
    PyObject *future =
        laid == 0 ? PyType_GenericNew((PyTypeObject *)self->make, NULL, NULL) : NULL;
    if (future != NULL && PyObject_SetAttr(future, name__entry, entry) < 0) {
        Py_CLEAR(future);
    }
    Py_DECREF(entry);
    return future;
}

static PyMethodDef entrance_methods[] = {
    {"enter", (PyCFunction)(void (*)(void))entrance_enter, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot entrance_slots[] = {
    {Py_tp_doc, "Lets operations in. See batching/futures.py."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, entrance_init},
    {Py_tp_traverse, entrance_traverse},
    {Py_tp_clear, entrance_clear},
    {Py_tp_dealloc, entrance_dealloc},
    {Py_tp_methods, entrance_methods},
    {0, NULL},
};

static PyType_Spec entrance_spec = {
    .name = "batchkeeper._accelerator.Entrance",
    .basicsize = sizeof(Entrance),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = entrance_slots,
};

/* --- bulk calls: the twins are in batching/bulk.py */

/* Append the entry of an operation, or of the get of a path, to a list; say whether it is like the
   others of its kind, and small enough. Return -1 with an error. */
static int append_plain(PyObject *made, PyObject *op, Origin *origin, Py_ssize_t value_bytes,
                        Py_ssize_t request_bytes, Py_ssize_t *size)
{
    bool bare = PyUnicode_CheckExact(op);
    PyObject *path = bare ? Py_NewRef(op) : PyObject_GetAttr(op, name_path);
    PyObject *value = bare ? Py_NewRef(Py_None) : PyObject_GetAttr(op, name_value);
    PyObject *expected = bare ? Py_NewRef(Py_None) : PyObject_GetAttr(op, name_expected_version);
    PyObject *options = bare ? Py_NewRef(Py_None) : PyObject_GetAttr(op, name_options);
    PyObject *entry = NULL;
    int status = -1;
    if (path == NULL || value == NULL || expected == NULL || options == NULL) {
        goto done;
    }
    if (options != Py_None || (value != Py_None && PyObject_Size(value) > value_bytes)) {
        status = 0;
        goto done;
    }
    if ((entry = PyType_GenericNew(entry_type, NULL, NULL)) == NULL) {
        goto done;
    }
    Py_ssize_t weight = fill((Entry *)entry, origin, path, value, expected, options, op);
    if (weight >= 0) {
        status = weight <= request_bytes;
    }
    if (status > 0) {
        *size += weight;
        status = PyList_Append(made, entry) < 0 ? -1 : 1;
    }
done:
    Py_XDECREF(path);
    Py_XDECREF(value);
    Py_XDECREF(expected);
    Py_XDECREF(options);
    Py_XDECREF(entry);
    return status < 0 || PyErr_Occurred() ? -1 : status;
}

static PyObject *plain_entries(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *ops, *plain, *lanes, *sink, *now, *timeout;
    Py_ssize_t place, end, value_bytes, request_bytes, most, size = 0;
    int acyclic;
    if (!PyArg_ParseTuple(args, "OnnO!OOOOnnnp:plain_entries", &ops, &place, &end, &PyTuple_Type,
                          &plain, &lanes, &sink, &now, &timeout, &value_bytes, &request_bytes,
                          &most, &acyclic)) {
        return NULL;
    }
    PyObject *made = PyList_New(0), *kind = NULL, *first = NULL;
    Origin origin = {0};
    if (made == NULL || (first = PySequence_GetItem(ops, place)) == NULL) {
        goto failed;
    }
    PyTypeObject *type = Py_TYPE(first);
    int chosen = PySequence_Contains(plain, (PyObject *)type);
    if (chosen <= 0) {
        Py_DECREF(first);
        if (chosen < 0) {
            Py_CLEAR(made);
        }
        return made;
    }
    kind = PyUnicode_CheckExact(first) ? Py_NewRef(name_get) : PyObject_GetAttr(first, name_kind);
    if (kind == NULL || !origin_find(&origin, kind, lanes, sink, now, timeout)) {
        goto failed;
    }
    origin.cyclic = !acyclic; /* The callers are plain operations, or paths. */
    for (int status = 1; status > 0 && place < end && size < most; place++) {
        PyObject *op = PySequence_GetItem(ops, place);
        if (op == NULL) {
            goto failed;
        }
        status = 0;
        if (Py_IS_TYPE(op, type)) {
            status = append_plain(made, op, &origin, value_bytes, request_bytes, &size);
        }
        Py_DECREF(op);
        if (status < 0) {
            goto failed;
        }
    }
    Py_DECREF(first);
    Py_DECREF(kind);
    origin_free(&origin);
    return made;
failed:
    Py_XDECREF(made);
    Py_XDECREF(first);
    Py_XDECREF(kind);
    origin_free(&origin);
    return NULL;
}

static PyObject *take_outcomes(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *waiting, *outcome, *error, *got;
    Py_ssize_t size = 0, gets = 0, values = 0;
    if (!PyArg_ParseTuple(args, "OOOO:take_outcomes", &waiting, &outcome, &error, &got)) {
        return NULL;
    }
    Maker made_of = {0};
    bool bare = outcome == Py_None, fine = bare || maker_open(&made_of, outcome, 3);
    PyObject *taken = PyList_New(0);
    PyObject *popleft = PyObject_GetAttr(waiting, name_popleft);
    if (!fine || taken == NULL || popleft == NULL) {
        goto failed;
    }
    for (Py_ssize_t left = PyObject_Size(waiting); left > 0; left--) {
        PyObject *head = PySequence_GetItem(waiting, 0);
        Entry *entry = head == NULL ? NULL : as_entry(head);
        Py_XDECREF(head); /* The deque keeps it. */
        if (entry == NULL) {
            goto failed;
        }
        if (entry->state < ENDED) {
            break;
        }
        PyObject *item = PyObject_CallNoArgs(popleft);
        if (item == NULL) {
            goto failed;
        }
        entry = as_entry(item);
        bool whole = entry != NULL && present(entry->answer, "answer") &&
                     present(entry->caller, "caller");
        int failed = !whole                    ? -1
                     : is_plain(entry->answer) ? 0
                                               : PyObject_IsInstance(entry->answer, error);
        if (failed == 0 && (PyObject *)Py_TYPE(entry->answer) == got) {
            Py_ssize_t bytes = PyObject_Size(PyTuple_GetItem(entry->answer, 0));
            failed = bytes < 0 ? -1 : 0;
            values += bytes;
        }
        PyObject *made = NULL;
        if (failed > 0 && bare) {
            PyErr_SetObject((PyObject *)Py_TYPE(entry->answer), entry->answer);
        } else if (failed >= 0) {
            size += entry->weight;
            gets += entry->kind == name_get;
        }
        if (failed == 0 && bare) {
            made = Py_NewRef(entry->answer);
        } else if (failed >= 0 && !bare) {
            PyObject *result = failed ? Py_None : entry->answer;
            PyObject *reason = failed ? entry->answer : Py_None;
            maker_set(&made_of, 0, Py_NewRef(entry->caller));
            maker_set(&made_of, 1, Py_NewRef(result));
            maker_set(&made_of, 2, Py_NewRef(reason));
            made = maker_make(&made_of);
        }
        Py_DECREF(item);
        int status = made == NULL ? -1 : PyList_Append(taken, made);
        Py_XDECREF(made);
        if (status < 0) {
            goto failed;
        }
    }
    if (PyErr_Occurred()) {
        goto failed;
    }
    Py_DECREF(popleft);
    maker_close(&made_of);
    return Py_BuildValue("(Nnnn)", taken, size, gets, values);
failed:
    maker_close(&made_of);
    Py_XDECREF(taken);
    Py_XDECREF(popleft);
    return NULL;
}

/* --- paths: the twin is in ops/paths.py */

/* Say whether an ASCII path keeps the rule. */
static bool keeps_rule(const char *path, Py_ssize_t size)
{
    static const char own[] = ".batchkeeper", server[] = "/zookeeper";
    const Py_ssize_t own_size = sizeof own - 1, server_size = sizeof server - 1;
    if (size < 2 || path[0] != '/' || path[size - 1] == '/') {
        return false;
    }
    if (size >= server_size && memcmp(path, server, (size_t)server_size) == 0 &&
        (size == server_size || path[server_size] == '/')) {
        return false;
    }
    for (Py_ssize_t start = 1; start < size;) {
        Py_ssize_t end = start;
        for (; end < size && path[end] != '/'; end++) {
            if (path[end] < ' ' || path[end] > '~') {
                return false;
            }
        }
        Py_ssize_t length = end - start;
        if (length == 0) {
            return false;
        }
        if (path[start] == '.') {
            if (length == 1 || (length == 2 && path[start + 1] == '.')) {
                return false;
            }
            if (length >= own_size && memcmp(path + start, own, (size_t)own_size) == 0 &&
                (length == own_size || path[start + own_size] == '-')) {
                return false;
            }
        }
        start = end + 1;
    }
    return true;
}

static PyObject *check_path(PyObject *module, PyObject *path)
{
    (void)module;
    if (PyUnicode_Check(path)) {
        Py_ssize_t size;
        const char *text = PyUnicode_AsUTF8AndSize(path, &size);
        if (text != NULL && keeps_rule(text, size)) {
            return Py_NewRef(path);
        }
        PyErr_Clear(); /* A surrogate: the twin refuses it. */
    }
    PyObject *twin = bound("check_path");
    return twin == NULL ? NULL : PyObject_CallFunctionObjArgs(twin, path, NULL);
}

/* --- transactions */

enum { FEW = 8 }; /* see ops/operations.py */

/* A transaction as far as it is read. */
typedef struct {
    PyObject *paths[FEW];
    PyObject *checked[FEW];
    Py_ssize_t parts, checks, size, largest;
} Joined;

/* Read a check or a put that expects a version, without options; return 0 if it is something else. */
static int join_part(Joined *joined, PyObject *part, PyObject *check_type, PyObject *put_type)
{
    bool is_check = (PyObject *)Py_TYPE(part) == check_type;
    if (!is_check && (PyObject *)Py_TYPE(part) != put_type) {
        return 0;
    }
    PyObject *path = NULL, *value = NULL, *expected = NULL, *options = NULL;
    int status = 0;
    Py_ssize_t of_path = 0;
    if (!get_attribute(part, name_path, &PyUnicode_Type, &path) ||
        !get_attribute(part, name_value, NULL, &value) ||
        !get_attribute(part, name_expected_version, NULL, &expected) ||
        !get_attribute(part, name_options, NULL, &options) ||
        (of_path = path_bytes(path)) < 0) {
        status = PyErr_Occurred() ? -1 : 0;
    } else if (options == Py_None && expected != Py_None && (is_check || PyBytes_Check(value))) {
        status = 1;
        for (Py_ssize_t i = 0; status == 1 && i < joined->parts; i++) {
            int order = PyUnicode_Compare(path, joined->paths[i]);
            status = order == -1 && PyErr_Occurred() ? -1 : order != 0;
        }
    }
    if (status == 1) {
        Py_ssize_t of_value = is_check ? 0 : PyBytes_Size(value);
        joined->size += of_path + of_value;
        joined->largest = of_value > joined->largest ? of_value : joined->largest;
        if (is_check) {
            joined->checked[joined->checks++] = path;
        }
        joined->paths[joined->parts++] = path;
        path = NULL; /* kept */
    }
    Py_XDECREF(path);
    Py_XDECREF(value);
    Py_XDECREF(expected);
    Py_XDECREF(options);
    return status;
}

static PyObject *tuple_of(PyObject **items, Py_ssize_t count)
{
    PyObject *made = PyTuple_New(count);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyTuple_SetItem(made, i, Py_NewRef(items[i]));
    }
    return untrack(made);
}

static PyObject *join_parts(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *parts;
    if (!PyArg_ParseTuple(args, "O!:join_parts", &PyTuple_Type, &parts)) {
        return NULL;
    }
    Joined joined = {.parts = 0};
    Py_ssize_t count = PyTuple_Size(parts);
    PyObject *check_type = bound("Check"), *put_type = check_type ? bound("Put") : NULL;
    if (put_type == NULL) {
        return NULL;
    }
    int status = 0 < count && count < FEW;
    for (Py_ssize_t i = 0; status == 1 && i < count; i++) {
        status = join_part(&joined, PyTuple_GetItem(parts, i), check_type, put_type);
    }
    PyObject *found = NULL;
    if (status == 1) {
        PyObject *paths = tuple_of(joined.paths, joined.parts);
        PyObject *checked = paths ? tuple_of(joined.checked, joined.checks) : NULL;
        found = checked == NULL ? NULL
                                : Py_BuildValue("(ONNOOnn)", parts, paths, checked, Py_False,
                                                Py_True, joined.size, joined.largest);
        if (checked == NULL) {
            Py_XDECREF(paths);
        }
    }
    for (Py_ssize_t i = 0; i < joined.parts; i++) {
        Py_DECREF(joined.paths[i]);
    }
    return status == 1 ? found : defer("join_parts", args);
}

int entries_start(PyObject *module)
{
    if (entry_type == NULL && (entry_type = (PyTypeObject *)PyType_FromSpec(&spec)) == NULL) {
        return -1;
    }
    static PyObject *entrance_type;
    if (entrance_type == NULL && (entrance_type = PyType_FromSpec(&entrance_spec)) == NULL) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Entry", (PyObject *)entry_type) < 0
               ? -1
               : PyModule_AddObjectRef(module, "Entrance", entrance_type);
}

PyMethodDef entries_methods[] = {
    {"join_parts", join_parts, METH_VARARGS, NULL},
    {"all_results", all_results, METH_VARARGS, NULL},
    {"assign_epoch", assign_epoch, METH_VARARGS, NULL},
    {"check_path", check_path, METH_O, NULL},
    {"column", column, METH_VARARGS, NULL},
    {"common", common, METH_VARARGS, NULL},
    {"deadlines", deadlines, METH_O, NULL},
    {"end_sent", end_sent, METH_VARARGS, NULL},
    {"end_unwatched", end_unwatched, METH_VARARGS, NULL},
    {"enter_alone", enter_alone, METH_VARARGS, NULL},
    {"forget_contents", forget_contents, METH_O, NULL},
    {"leave_alone", leave_alone, METH_VARARGS, NULL},
    {"move", move, METH_VARARGS, NULL},
    {"plain_entries", plain_entries, METH_VARARGS, NULL},
    {"take_entries", take_entries, METH_VARARGS, NULL},
    {"take_outcomes", take_outcomes, METH_VARARGS, NULL},
    {"total_weight", total_weight, METH_O, NULL},
    {"waited", waited, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
