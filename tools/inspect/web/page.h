#pragma once

#include <string>

namespace gradwire::inspect {

// The page: HTML with its style and its program in it. It needs nothing else from anywhere, except its data
// from the same server: GET /data with the token in the header transport::kTokenHeader. All text of the job
// gets into it as text, never as HTML.
const std::string& page_html();

// The Content-Security-Policy of the page. It allows the style and the program that are in the page, by their
// hashes, and requests to the same server. It forbids everything else, and frames of other pages.
const std::string& page_policy();

}  // namespace gradwire::inspect
