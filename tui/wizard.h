/* The Setup screen: steps at the left, the present step at the right, buttons at the foot. The work
 * itself is a flow (setup/step.h) in a thread of its own; the screen never waits for it. Owned by the
 * screen's thread; the flow is touched by the screen only while its thread is idle. */
#ifndef TUI_WIZARD_H
#define TUI_WIZARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "setup/step.h"
#include "tui/canvas.h"
#include "tui/input.h"

struct app;

enum {
    WIZARD_LINES = 200,
    WIZARD_LINE_BYTES = 400,
    WIZARD_RATES = 128,
    WIZARD_FIELDS = 4,
    WIZARD_FIELD_BYTES = 512,
    WIZARD_QUESTION_BYTES = 2000
};

typedef enum wizard_phase { WIZARD_INSPECT, WIZARD_APPLY, WIZARD_ACCEPT } wizard_phase;

/* What may stand at the foot. */
typedef enum wizard_button {
    BUTTON_BACK,
    BUTTON_AGAIN,
    BUTTON_APPLY,
    BUTTON_GO_ON,
    BUTTON_COMMANDS,
    BUTTON_NEXT,
    BUTTON_STOP,
    BUTTON_LEAVE,
    N_BUTTONS
} wizard_button;

typedef struct wizard {
    flow *f;
    err problem; /* why there is no flow */
    flow_options options;
    char program[700], head_root[512], worker_root[512];
    bool is_thread_up;
    pthread_t thread;
    int wake[2];

    pthread_mutex_t lock; /* guards what follows up to the line */
    pthread_cond_t turn;
    bool is_busy, is_closing;
    wizard_phase phase;
    int i_phase_step;
    char lines[WIZARD_LINES][WIZARD_LINE_BYTES];
    int n_lines; /* written so far; the newest WIZARD_LINES are kept */
    flow_progress progress;
    bool has_progress;
    float rates[WIZARD_RATES]; /* bytes a second, oldest first, for the plot */
    int n_rates;
    uint64_t rate_due_ms;
    char question[WIZARD_QUESTION_BYTES]; /* "" none */
    bool is_secret;
    bool is_answered, is_refused;
    char answer[SSH_SECRET_MAX];
    /* ---- */
    atomic_bool stop, leave;
    step_view view; /* of step i_step; the thread's while it is busy */
    bool has_view;

    int i_step;
    step_state states[STEP_COUNT];
    char fields[WIZARD_FIELDS][WIZARD_FIELD_BYTES];
    char field_error[WIZARD_FIELDS][200];
    int n_fields;
    int focus; /* 0 .. n_fields - 1, then the buttons that are there */
    wizard_button buttons[N_BUTTONS];
    int n_buttons;
    int top, n_content, n_room; /* scrolling of the content */
    char typed[SSH_SECRET_MAX]; /* the answer that is being typed */
    bool wants_inspect;
} wizard;

/* Never NULL. Nothing runs before wizard_enter. */
wizard *wizard_new(const char *head_root, const char *worker_root);
/* Ends the phase that runs (background jobs go on) and frees. */
void wizard_free(wizard *w);
/* Readable when something changed. */
int wizard_fd(const wizard *w);
/* True when the screen must be drawn again. */
bool wizard_pump(wizard *w);
/* The screen is shown: opens the flow the first time and goes to the first open step. */
void wizard_enter(wizard *w);
bool wizard_is_busy(wizard *w);
/* Stops the phase that runs; goes_on: a background job is left running. */
void wizard_stop(wizard *w, bool goes_on);

void screen_setup_draw(struct app *a, area box, int *cursor_row, int *cursor_column);
/* True when the key was taken. */
bool screen_setup_key(struct app *a, const input_event *ev);

/* Inside of the wizard's files. */
void wizard_go(wizard *w, int i_step);
void wizard_start(wizard *w, wizard_phase phase);
void wizard_buttons(wizard *w);
const char *wizard_button_name(const wizard *w, wizard_button b);
void wizard_answer(wizard *w, const char *text, bool is_refused);
bool wizard_has_question(wizard *w);
/* Fields into answers; false when one is wrong (field_error says how). */
bool wizard_take_fields(wizard *w);

/* The first screen of all: chat with the demo, set up two machines, attach. */
bool wizard_is_first_run(void);
void wizard_welcome_draw(struct app *a, area box);
bool wizard_welcome_key(struct app *a, const input_event *ev);

#endif
