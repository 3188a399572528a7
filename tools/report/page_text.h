/* SPDX-License-Identifier: Apache-2.0 */
/* page/page.html, page.css and all scripts beside it, as the build puts them in (cmake/EmbedText.cmake). */
#ifndef CKV_TOOLS_REPORT_PAGE_TEXT_H
#define CKV_TOOLS_REPORT_PAGE_TEXT_H

extern const char page_html[], page_css[], page_js[];

#endif
