package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/gemworker/gem/internal/plainfile"
	"github.com/gemworker/gem/receipts"
)

// onlyHere explains a call that ended as unknown_tool although the registry file of this folder has its tool, and
// what to do. It returns an empty text for any other receipt.
func onlyHere(r *receipts.Receipt) string {
	failure, failed := r.Error()
	file := chosenFile(devFiles[0].variable, devFiles[0].name)
	if !failed || failure.Code != receipts.UnknownTool || file == "" {
		return ""
	}
	text, err := plainfile.Read(file)
	if err != nil {
		return ""
	}
	var here struct { // read loosely: a worker may reject the file
		Version string
		Tools   []struct{ Name string }
	}
	if json.Unmarshal(text, &here) != nil {
		return ""
	}
	for _, tool := range here.Tools {
		if tool.Name != r.ToolName {
			continue
		}
		remedy := "start a worker with this file: gem dev in this folder, or gem worker with TOOLS_REGISTRY=" + absolute(file)
		if runningDev() != "" {
			remedy = "gem dev loads the file as soon as `gem registry check` finds no fault in it. Then make the call again"
		}
		return fmt.Sprintf("%s here (version %s) has the tool %s, and the registry of the worker that ended the call "+
			"(version %s) does not: %s.", file, cut(printable(here.Version), 100), cut(printable(r.ToolName), 200),
			r.RegistryVersion, remedy)
	}
	return ""
}

func absolute(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}
