/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as XML. */
#ifndef CKV_TOOLS_XML_TEXT_H
#define CKV_TOOLS_XML_TEXT_H

#include <stddef.h>
#include <stdio.h>

/* Text as XML character data or as the inside of a quoted attribute: what XML cannot hold becomes \xNN. */
void xml_put_text(FILE *stream, const char *text, size_t bytes);

#endif
