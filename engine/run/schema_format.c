/* Formats as regular expressions over the whole text. Runs of digits have no end by the standards;
 * what a reply writes has one, or a model could fill its limit with zeros. RUN stands for it. */
#include <string.h>

#include "engine/run/schema_internal.h"

#define DAYS_31 "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
#define DAYS_30 "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
#define DAYS_28 "02-(?:0[1-9]|1[0-9]|2[0-8])"
#define LEAP_YEAR "(?:[0-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DATE "(?:[0-9]{4}-(?:" DAYS_31 "|" DAYS_30 "|" DAYS_28 ")|" LEAP_YEAR "-02-29)"
#define OFFSET "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define TIME(RUN) "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]" RUN ")?" OFFSET
#define DATE_TIME(RUN) DATE "[Tt]" TIME(RUN)
#define DURATION(RUN)                                                                              \
    "P(?:[0-9]" RUN "W|(?:[0-9]" RUN "Y(?:[0-9]" RUN "M(?:[0-9]" RUN "D)?)?|[0-9]" RUN             \
    "M(?:[0-9]" RUN "D)?|[0-9]" RUN "D)(?:T(?:[0-9]" RUN "H(?:[0-9]" RUN "M(?:[0-9]" RUN           \
    "S)?)?|[0-9]" RUN "M(?:[0-9]" RUN "S)?|[0-9]" RUN "S))?|T(?:[0-9]" RUN "H(?:[0-9]" RUN         \
    "M(?:[0-9]" RUN "S)?)?|[0-9]" RUN "M(?:[0-9]" RUN "S)?|[0-9]" RUN "S))"

#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4 OCTET "(?:\\." OCTET "){3}"
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                       \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32      \
    "|(?:(?:" H16 ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16             \
    ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16       \
    ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16   \
    ")?::)"

/* Without "--" in the third and fourth place: whether such a label encodes a name that is allowed
 * is not a matter of its letters alone. */
#define ALNUM "[A-Za-z0-9]"
#define INNER "[A-Za-z0-9-]"
#define LABEL                                                                                      \
    "(?:" ALNUM "|" ALNUM INNER "{0,2}" ALNUM "|" ALNUM INNER "(?:" ALNUM INNER "|-" ALNUM         \
    ")" INNER "{0,58}" ALNUM ")"
#define HOSTNAME LABEL "(?:\\." LABEL ")*"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define QUOTED "\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\""
#define EMAIL                                                                                      \
    "(?:" ATOM "(?:\\." ATOM ")*|" QUOTED ")@(?:" HOSTNAME "|\\[(?:" IPV4 "|IPv6:" IPV6 ")\\])"

#define ESCAPED "%[0-9A-Fa-f]{2}"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" ESCAPED ")"
#define AUTHORITY(RUN)                                                                             \
    "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|" ESCAPED ")*@)?(?:\\[(?:" IPV6                             \
    "|v[0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|" ESCAPED     \
    ")*)(?::(?:[0-9]" RUN ")?)?"
#define TAIL "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define SEGMENTS "(?:/" PCHAR "*)*"
#define URI(RUN)                                                                                   \
    "[A-Za-z][A-Za-z0-9+.-]*:(?://" AUTHORITY(RUN) SEGMENTS "|/(?:" PCHAR "+" SEGMENTS ")?|" PCHAR \
                                                            "+" SEGMENTS "|)" TAIL
#define RELATIVE(RUN)                                                                              \
    "(?://" AUTHORITY(RUN) SEGMENTS "|/(?:" PCHAR "+" SEGMENTS                                     \
                                    ")?|(?:[A-Za-z0-9._~!$&'()*+,;=@-]|" ESCAPED ")+" SEGMENTS     \
                                    "|)" TAIL

#define ENDLESS "+"

const char *format_pattern(const char *name, bool is_written) {
    static const struct {
        const char *name, *written, *all; /* all NULL: the same */
    } formats[] = {{"date-time", DATE_TIME("{1,9}"), DATE_TIME(ENDLESS)}, {"date", DATE, NULL},
        {"time", TIME("{1,9}"), TIME(ENDLESS)}, {"duration", DURATION("{1,9}"), DURATION(ENDLESS)},
        {"email", EMAIL, NULL}, {"hostname", HOSTNAME, NULL}, {"ipv4", IPV4, NULL},
        {"ipv6", IPV6, NULL},
        {"uuid", "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}", NULL},
        {"uri", URI("{1,5}"), URI(ENDLESS)},
        {"uri-reference", "(?:" URI("{1,5}") "|" RELATIVE("{1,5}") ")",
            "(?:" URI(ENDLESS) "|" RELATIVE(ENDLESS) ")"},
        {"json-pointer", "(?:/(?:[^/~]|~[01])*)*", NULL}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].name, name) != 0) continue;
        return is_written || formats[i].all == NULL ? formats[i].written : formats[i].all;
    }
    return NULL;
}

uint32_t format_length_max(const char *name) {
    if (strcmp(name, "hostname") == 0) return 253;
    return strcmp(name, "email") == 0 ? 320 : 0;
}
