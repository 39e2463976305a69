package extract

// PromptNumber is the number of the prompts' wording. It rises with every change, since answers to another wording are not answers to this one.
const PromptNumber = 1

// Prompt is what a model is asked.
type Prompt struct{ System, User string }

// Prompt asks for what a window holds.
func (c *Compiled) Prompt(w Window) Prompt { return Prompt{c.prefix, w.Text()} }

// Repair asks again, after an answer of which items were rejected, or that could not be read. The old answer is shown up to 16 KiB.
func (c *Compiled) Repair(w Window, rejected []Rejected, old string) Prompt { return c.Prompt(w) }
