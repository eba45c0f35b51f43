"""The same equations solved with other tools, as well as we can with each."""
