/* Formats as regular expressions over the whole text. */
#include <string.h>

#include "engine/run/schema_internal.h"

#define DAYS_31 "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
#define DAYS_30 "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
#define DAYS_28 "02-(?:0[1-9]|1[0-9]|2[0-8])"
#define LEAP_YEAR "(?:[0-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DATE "(?:[0-9]{4}-(?:" DAYS_31 "|" DAYS_30 "|" DAYS_28 ")|" LEAP_YEAR "-02-29)"
#define OFFSET "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?" OFFSET

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
#define AUTHORITY                                                                                  \
    "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|" ESCAPED ")*@)?(?:\\[(?:" IPV6                             \
    "|v[0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|" ESCAPED     \
    ")*)(?::[0-9]*)?"
#define TAIL "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define SEGMENTS "(?:/" PCHAR "*)*"
#define URI                                                                                        \
    "[A-Za-z][A-Za-z0-9+.-]*:(?://" AUTHORITY SEGMENTS "|/(?:" PCHAR "+" SEGMENTS ")?|" PCHAR      \
    "+" SEGMENTS "|)" TAIL
#define RELATIVE                                                                                   \
    "(?://" AUTHORITY SEGMENTS "|/(?:" PCHAR "+" SEGMENTS                                          \
    ")?|(?:[A-Za-z0-9._~!$&'()*+,;=@-]|" ESCAPED ")+" SEGMENTS "|)" TAIL

const char *format_pattern(const char *name) {
    static const struct {
        const char *name, *pattern;
    } formats[] = {{"date-time", DATE "[Tt]" TIME}, {"date", DATE}, {"time", TIME},
        {"duration",
            "P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:T(?:"
            "[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|T(?:[0-9]+H(?:[0-9]+M("
            "?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))"},
        {"email", EMAIL}, {"hostname", HOSTNAME}, {"ipv4", IPV4}, {"ipv6", IPV6},
        {"uuid", "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"}, {"uri", URI},
        {"uri-reference", "(?:" URI "|" RELATIVE ")"}, {"json-pointer", "(?:/(?:[^/~]|~[01])*)*"}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].name, name) == 0) return formats[i].pattern;
    }
    return NULL;
}
